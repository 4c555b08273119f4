"""Adaptors of FastDeploy's ops: :class:`Adaptor`, its decorators, and the common backend."""

from __future__ import annotations

import ast
import inspect
import math
import os
from collections.abc import Callable, Mapping
from functools import partial
from numbers import Integral
from operator import itemgetter
from typing import Any

import numpy as np
import paddle

from specdec_hal.engine.runtime import load
from specdec_hal.errors import ArgumentError
from specdec_hal.loop.logit_batch import backend_for
from specdec_hal.plugin.backend import Backend
from specdec_hal.plugin.registry import get_backend
from specdec_hal.text import short
from specdec_hal_fastdeploy.plan import KeptPlan, Plan, Tensor, data_ptr, dtype_of

__all__ = ["ADAPTORS", "Adaptor", "Plan", "Tensor", "adaptor", "older", "refused", "use_backend"]

PLATFORMS = ("gpu", "xpu")
ADAPTORS: dict[str, dict[str, Adaptor]] = {platform: {} for platform in PLATFORMS}
"""Adaptors by FastDeploy's op package and name."""

_MOST_PLANS = 64
"""Most plans kept per op; then all are dropped."""

_backend: Backend | None = None


def use_backend(backend: str | Backend | None = None, *, config: str | os.PathLike[str] | None = None) -> None:
    """Choose the backend of the ops: an object, a name, or a YAML configuration.

    By default SPECDEC_HAL_BACKEND, else the best backend for the device of the first tensors.
    """
    global _backend
    backend_for.cache_clear()  # the variable may have changed
    if config is not None:
        _backend = load(config).backend
    else:
        _backend = get_backend(backend) if isinstance(backend, str) else backend
    for adaptors in ADAPTORS.values():
        for served in adaptors.values():
            served.forget()


def backend_of(args: tuple[Any, ...]) -> Backend:
    global _backend
    if _backend is None:
        on_host = all(arg.place.is_cpu_place() for arg in args if isinstance(arg, paddle.Tensor))
        _backend = backend_for("cpu" if on_host else "cuda", None)
    return _backend


_KINDS: dict[str, tuple[type, ...]] = {"int": (Integral,), "bool": (bool, np.bool_)}


class _Form:
    """One signature of an op: the function that plans a call of it; `dtypes` of tensors that tell it from others.

    `arguments`: FastDeploy's, in order, of which the function takes those that it names. Empty: the function's own.
    `returns`: the arguments that an in-place op returns.
    """

    def __init__(self, function: Callable[..., Any], arguments: str, returns: str, dtypes: Mapping[str, str]) -> None:
        own = list(inspect.signature(function).parameters.values())[1:]
        parameters = list(map(_parameter, arguments.split())) or own
        annotations = [str(parameter.annotation) for parameter in parameters]
        self._function, self._own, self.doc = function, {parameter.name for parameter in own}, function.__doc__
        self.names = [parameter.name for parameter in parameters]
        self.is_tensor = [annotation.startswith("Tensor") for annotation in annotations]
        self.optional = [annotation.endswith("None") for annotation in annotations]
        self.is_int = [annotation == "int" for annotation in annotations]
        self.kinds = [_KINDS.get(annotation) for annotation in annotations]
        self.dtypes = {self.names.index(name): dtype for name, dtype in dtypes.items()}
        self.outputs = _outputs([self.names.index(name) for name in returns.split()])
        self.most = len(parameters)
        self.least = sum(parameter.default is inspect.Parameter.empty for parameter in parameters)
        self.defaults = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}

    def function(self, plan: Plan, *args: Any) -> Any:
        """Plan a call."""
        return self._function(
            plan, **{name: arg for name, arg in zip(self.names, args, strict=False) if name in self._own}
        )

    def takes(self, count: int) -> bool:
        return self.least <= count <= self.most

    def fits(self, args: tuple[Any, ...], ints: bool) -> bool:
        """Whether the arguments match its tensors, attributes and dtypes; with `ints`, tensors may be numbers."""
        return all(
            (_is_tensor(arg) or (optional and arg is None))
            if wanted
            else (kind is None or isinstance(arg, kind) or (ints and number and _is_tensor(arg)))
            for arg, wanted, optional, number, kind in zip(
                args, self.is_tensor, self.optional, self.is_int, self.kinds, strict=False
            )
        ) and all(args[i] is None or dtype_of(args[i]) == dtype for i, dtype in self.dtypes.items())


def _parameter(argument: str) -> inspect.Parameter:
    """One argument of FastDeploy's as text: a tensor but for `:int` and `:bool`; `?`: may be None; `=`: its default."""
    declared, _, default = argument.partition("=")
    name, _, kind = declared.rstrip("?").partition(":")
    return inspect.Parameter(
        name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=ast.literal_eval(default) if default else inspect.Parameter.empty,
        annotation=kind or ("Tensor | None" if declared.endswith("?") else "Tensor"),
    )


def _is_tensor(arg: Any) -> bool:
    return isinstance(arg, paddle.Tensor)


def _outputs(positions: list[int]) -> Callable[[tuple[Any, ...]], Any]:
    """What an in-place op returns of its arguments, as Paddle's custom ops do: a tensor, a list of several, or None."""
    if not positions:
        return lambda args: None
    pick = itemgetter(*positions)
    return pick if len(positions) == 1 else lambda args: list(pick(args))


def _picked(positions: list[int]) -> Callable[[tuple[Any, ...]], Any]:
    """Gives what stands at these positions; of many, in C."""
    return itemgetter(*positions) if positions else lambda args: ()


class _Look:
    """Calls with the same argument types: their form, and the positions of tensors."""

    def __init__(self, form: _Form, args: tuple[Any, ...]) -> None:
        tensors = [i for i, arg in enumerate(args) if _is_tensor(arg)]
        others = [i for i in range(len(args)) if i not in tensors]
        self.form = form
        self.repeats = len(tensors) > 1  # else `itemgetter` gives no tuple
        self.tensors, self.others = _picked(tensors), _picked(others)
        self.numbers = [i for i in tensors if form.is_int[i]]
        """Positions of one-element tensors used as ints."""


class Adaptor:
    """One FastDeploy op as a callable with its positional arguments, in-place outputs and return value.

    `forms` are shared by the platforms that have it. `plans`: those kept, by the ids of their arguments.
    """

    def __init__(self, name: str, platform: str, forms: list[_Form]) -> None:
        self.__name__, self.__doc__ = name, forms[0].doc
        self.platform, self.forms = platform, forms
        self.plans: dict[tuple[int, ...], KeptPlan] = {}
        self._looks: dict[tuple[Any, ...], _Look] = {}
        self.decide()

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Run the op; returns FastDeploy's result: fresh tensors, or the outputs of an in-place op."""
        if named:
            args = self._positional(args, named)
        key = tuple(map(id, args))
        plan = self.plans.get(key)
        # The same tensors may have new memory.
        if plan is None or plan.addresses != tuple(map(data_ptr, plan.pick(args))):
            return self._first(args, key)
        plan.run()
        return plan.outputs(args)

    def plan(self, plan: Plan, *args: Any) -> Any:
        """Plan a call of the newest signature as part of another's; without arguments, those of the same names."""
        form = self.forms[0]
        args = args or tuple(plan.given(*form.names).values())
        plan.take(form.names, args)
        return form.function(plan, *args)

    def decide(self) -> None:
        """Find the positions whose dtypes distinguish forms."""
        self._deciding = tuple(sorted({i for form in self.forms for i in form.dtypes}))

    def forget(self) -> None:
        """Drop the plans."""
        self.plans.clear()

    def _first(self, args: tuple[Any, ...], key: tuple[int, ...]) -> Any:
        """Plan a call, run it, and keep the plan if FastDeploy's op works in place."""
        kinds: tuple[Any, ...] = tuple(map(type, args))
        if self._deciding:
            kinds += tuple(getattr(args[i], "dtype", None) for i in self._deciding if i < len(args))
        look = self._looks.get(kinds) or self._look(args, kinds)
        form = look.form
        plan = Plan(self.__name__, self.platform, _backend or backend_of(args), form.names, args)
        if look.numbers:
            args = self._numbers(form, args, plan, look.numbers)
        result = form.function(plan, *args)
        plan.launch()
        if result is not None:
            return result
        if plan.keep and look.repeats:
            if len(self.plans) >= _MOST_PLANS:
                self.plans.clear()
            end = partial(self._drop, key)
            self.plans[key] = KeptPlan(plan, args, look.tensors, look.others, form.outputs, end)
        return form.outputs(args)

    def _look(self, args: tuple[Any, ...], kinds: tuple[Any, ...]) -> _Look:
        """The shape of a call with new types; ArgumentError if no form of the op matches."""
        form = self._form(args)
        self._check(form, args, Plan(self.__name__, self.platform, backend_of(args), form.names, args))
        look = self._looks[kinds] = _Look(form, args)
        return look

    def _drop(self, key: tuple[int, ...], reference: Any) -> None:
        self.plans.pop(key, None)

    def _form(self, args: tuple[Any, ...]) -> _Form:
        """The signature of a call: by the number of arguments, then by which of them are tensors."""
        forms = [form for form in self.forms if form.takes(len(args))]
        if not forms:
            counts = sorted({n for form in self.forms for n in range(form.least, form.most + 1)})
            self._fail(
                "*args",
                f"{', '.join(map(str, counts))} arguments ({', '.join(self.forms[0].names)})",
                f"{len(args)}, as of another version of FastDeploy",
                "see docs/use/fastdeploy.md for the versions that are served",
            )
        fitting = (form for ints in (False, True) for form in forms if form.fits(args, ints))
        return next(fitting, forms[0])

    def _numbers(self, form: _Form, args: tuple[Any, ...], plan: Plan, positions: list[int]) -> tuple[Any, ...]:
        """Arguments with tensors used as ints replaced by values; such a plan is not kept, as they may change."""
        plan.keep, values = False, list(args)
        for i in positions:
            if math.prod(args[i].shape) != 1 or dtype_of(args[i]) not in ("int32", "int64"):
                plan.fail(form.names[i], "an int, or an int tensor of one element", short(args[i]), "pass the number")
            values[i] = int(args[i].item())
        plan.take(form.names, values)
        return tuple(values)

    def _check(self, form: _Form, args: tuple[Any, ...], plan: Plan) -> None:
        for name, wanted, optional, number, kind, arg in zip(
            form.names, form.is_tensor, form.optional, form.is_int, form.kinds, args, strict=False
        ):
            if wanted and not _is_tensor(arg) and not (optional and arg is None):
                plan.fail(name, "a paddle.Tensor" + " or None" * optional, short(arg), "pass the tensor")
            if kind is not None and not isinstance(arg, kind) and not (number and _is_tensor(arg)):
                expected = "int" if Integral in kind else "bool"
                plan.fail(name, expected, short(arg), f"pass the attribute as Python's {expected}")

    def _positional(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """Arguments given by name, in the order of the newest signature."""
        form = self.forms[0]
        left = form.names[len(args) :]
        for name in named:
            if name not in left:
                self._fail(name, f"one of {', '.join(left) or 'no more arguments'}", "another name", "see help()")
        given = {**form.defaults, **named}
        missing = [name for name in left if name not in given]
        if missing:
            self._fail(missing[0], "a value", "nothing", "pass it")
        return (*args, *(given[name] for name in left))

    def _fail(self, argument: str, expected: str, got: str, hint: str) -> None:
        backend = _backend.name if _backend is not None else "auto"
        raise ArgumentError(op=self.__name__, backend=backend, argument=argument, expected=expected, got=got, hint=hint)

    def __repr__(self) -> str:
        return f"<FastDeploy op {self.__name__} of specdec_hal>"


def adaptor(
    *platforms: str, name: str = "", arguments: str = "", returns: str = "", **dtypes: str
) -> Callable[[Callable[..., Any]], Adaptor]:
    """Serve the FastDeploy op of that name, else the function's, in these op packages ("gpu", "xpu").

    `arguments`, `returns`: see :class:`_Form`. `dtypes`, by parameter, are needed only where another version has as
    many of them: see :func:`older`.
    """

    def register(function: Callable[..., Any]) -> Adaptor:
        own, forms = name or function.__name__, [_Form(function, arguments, returns, dtypes)]
        for platform in platforms:
            ADAPTORS[platform][own] = Adaptor(own, platform, forms)
        return ADAPTORS[platforms[0]][own]

    return register


def older(
    newest: Adaptor, arguments: str = "", returns: str = "", **dtypes: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Serve, or refuse, another version's signature of an op; of those of one length, tensors and `dtypes` decide."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        newest.forms.append(_Form(function, arguments, returns, dtypes))
        for platform in PLATFORMS:
            served = ADAPTORS[platform].get(newest.__name__)
            if served is not None and served.forms is newest.forms:
                served.decide()
        return function

    return register


def refused(newest: Adaptor, arguments: str, reason: str) -> None:
    """Refuse another version's signature, given by its arguments."""
    older(newest, arguments)(lambda plan: plan.refuse(reason))
