"""The steps of one call of a FastDeploy op, planned once for given tensors: :class:`Plan`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import repeat
from typing import Any, NoReturn

import paddle

from specdec_hal.errors import ArgumentError, UnsupportedError
from specdec_hal.ops import get_op
from specdec_hal.ops.spec import Role
from specdec_hal.plugin.backend import Backend, Launch
from specdec_hal.tensors.views import as_numpy

Tensor = Any
"""A `paddle.Tensor`. An adaptor's parameters that are annotated with it, or with ``Tensor | None``, are tensors."""

_Tensor = paddle.Tensor
data_ptr = _Tensor.data_ptr
Pick = Callable[[tuple[Any, ...]], Any]
"""Some of a call's arguments."""


@lru_cache(512)
def _filled(value: Any, shape: tuple[int, ...], dtype: str, device: str) -> Tensor:
    return paddle.full(shape, value, dtype).to(paddle.CPUPlace() if device == "cpu" else device)


class Plan:
    """The steps of one call: launches of this project's ops, and now and then an operation of Paddle between them.

    An adaptor fills it through :meth:`run` and :meth:`step`, and returns the fresh tensors that FastDeploy's op
    returns, if it makes any. A plan without any is kept, and run again when the same tensors come.
    """

    __slots__ = (
        "_alive", "_call", "_given", "_now", "_origins", "backend", "held", "keep", "op", "platform", "steps", "stream"
    )  # fmt: skip

    def __init__(self, op: str, platform: str, backend: Backend, names: Sequence[str], args: Sequence[Any]) -> None:
        self.op, self.platform, self.backend = op, platform, backend
        self.steps: list[Launch] = []
        self.keep: bool = not backend.debug and backend.shadow is None
        """Whether the plan may be reused. Debug checks and shadows need tensors, which a kept plan must not own."""
        self.stream: Callable[[], int] = int
        """Returns the stream of launches; Paddle's operations use its own."""
        self._call = self._now = names, args
        self._given: dict[str, Any] | None = None
        self._origins: dict[int, Tensor] = {}
        self._alive: list[Mapping[str, Any]] = []
        self.held: list[Tensor] = []
        """Views, scratch and constants, which a kept plan owns: a native launch knows addresses only."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the arguments that :meth:`given` gives."""
        return tuple(self._now[0])

    @property
    def device(self) -> str:
        """The place of the call's tensors, in Paddle's form."""
        if self.backend.device == "cpu":
            return "cpu"
        return next((_device_of(arg) for arg in self._call[1] if isinstance(arg, paddle.Tensor)), "cpu")

    # ---- what an adaptor calls

    def run(self, op: str, /, **arguments: Any) -> None:
        """Add a launch of one of this project's ops, its operands and attributes by name.

        Its tensors are the caller's, or this plan's own: what neither made goes through :meth:`hold` first. Strided
        views that are only read are copied, and the plan is then not kept.
        """
        try:
            bound = self.backend.bind(op, **arguments)
        except ArgumentError as error:
            strided = [name for name, tensor in arguments.items() if _is_strided(tensor) and _read_only(op, name)]
            if not strided:
                raise self._renamed(error, arguments) from error
            return self.run(op, **arguments | {name: self.contiguous(arguments[name]) for name in strided})
        except UnsupportedError as error:
            raise UnsupportedError(f"{self.op} [FastDeploy on {self.backend.name}]: {error}") from error
        if self.stream is int:
            self.stream = self.backend.stream_of(bound.call)
        self.steps.append(bound.launch if self.keep else bound)
        self._alive.append(arguments)

    def given(self, *same: str, **renamed: str) -> dict[str, Any]:
        """Arguments of the call by our operands' names: equal names, and ``operand="argument"``."""
        known = self._known()
        found = {name: known[name] for name in same}
        for operand, name in renamed.items():
            found[operand] = known[name]
        return found

    def step(self, run: Callable[[], Any]) -> None:
        """Add an operation of Paddle. It must hold neither the plan nor the caller's own tensors, but an `alias`."""

        def launch(stream: int) -> None:
            run()

        self.steps.append(launch)

    def hold(self, tensor: Tensor) -> Tensor:
        """The tensor, kept as long as the plan."""
        self.held.append(tensor)
        return tensor

    def first(self, count: int, tensor: Tensor | None) -> Tensor:
        """The first `count` rows of a buffer, not copied; the tensor itself if it has no more."""
        if not isinstance(tensor, _Tensor):
            return tensor
        shape = tensor.shape
        return self._derived(tensor, tensor[:count]) if shape and shape[0] > count else tensor

    def flat(self, tensor: Tensor | None) -> Tensor:
        """All elements in one axis, not copied, for arguments of varying shape."""
        if not isinstance(tensor, paddle.Tensor) or tensor.ndim == 1 or not tensor.is_contiguous():
            return tensor
        return self._derived(tensor, tensor.reshape([-1]) if tensor.ndim else tensor.unsqueeze(0))  # reshape copies 0-D

    def alias(self, tensor: Tensor) -> Tensor:
        """A tensor over the same memory for steps, which does not keep the caller's tensor alive."""
        return self._derived(tensor, tensor.detach())

    def contiguous(self, tensor: Tensor) -> Tensor:
        """The tensor, or a contiguous copy of an input that is a strided view."""
        if not isinstance(tensor, paddle.Tensor) or tensor.is_contiguous():
            return tensor
        self.keep = False
        return self._derived(tensor, tensor.contiguous())

    def cast(self, tensor: Tensor, dtype: str) -> Tensor:
        """An input in another dtype; the plan is then not kept."""
        if not isinstance(tensor, paddle.Tensor) or dtype_of(tensor) == dtype:
            return tensor
        self.keep = False
        return self._derived(tensor, tensor.astype(dtype))

    def columns(self, tensor: Tensor, width: int) -> tuple[Tensor, Callable[[], None]]:
        """A buffer [rows, any] as one of `width` columns, and a function to call after its change.

        The buffer itself if it is so wide; else a copy, which steps fill from it, and write back to it.
        """
        if not isinstance(tensor, paddle.Tensor) or tensor.ndim != 2 or tensor.shape[1] == width:
            return tensor, lambda: None
        kept = min(tensor.shape[1], width)
        copy = self._derived(tensor, self.scratch([tensor.shape[0], width], dtype_of(tensor)))
        theirs, ours = self.alias(tensor)[:, :kept], copy[:, :kept]
        self.step(lambda: paddle.assign(theirs, ours))
        return copy, lambda: self.step(lambda: paddle.assign(ours, theirs))

    def empty(self, shape: Sequence[int], dtype: str) -> Tensor:
        """A fresh tensor for the caller, whose values an op of this plan writes."""
        return self.hold(paddle.empty(list(shape), dtype))

    def constant(self, value: Any, shape: Sequence[int], dtype: str) -> Tensor:
        """A tensor of one value that nothing writes; shared."""
        return self.hold(_filled(value, tuple(shape), dtype, self.device))

    def scratch(self, shape: Sequence[int], dtype: str) -> Tensor:
        """Memory passed from one step of the plan to the next."""
        return self.hold(paddle.zeros(list(shape), dtype))

    def expect(self, dtype: str, *arguments: str) -> None:
        """Refuse tensors of another dtype, if only Paddle's operations use them."""
        for argument in arguments:
            got = dtype_of(self._known()[argument])
            if got != dtype:
                self.fail(argument, f"dtype {dtype}", got, "cast it; nothing is converted silently")

    def within(self, argument: str, indices: Tensor, count: int) -> None:
        """Refuse indices not below `count`, on every run; not checked on a GPU."""
        if self.device != "cpu" or not isinstance(indices, paddle.Tensor):
            return
        values, op, backend = self.alias(self.flat(indices)), self.op, self.backend.name

        def check() -> None:
            largest = int(as_numpy(values).max(initial=-1))
            if largest >= count:
                raise ArgumentError(
                    op=op, backend=backend, argument=argument, expected=f"indices below {count}", got=str(largest),
                    hint="pass the slots of this batch",
                )  # fmt: skip

        self.step(check)

    def refuse(self, reason: str) -> NoReturn:
        """UnsupportedError that names FastDeploy's op."""
        raise UnsupportedError(f"{self.op} [FastDeploy on {self.backend.name}]: {reason}")

    def fail(self, argument: str, expected: str, got: str, hint: str) -> NoReturn:
        """ArgumentError that names FastDeploy's op and argument."""
        raise ArgumentError(
            op=self.op, backend=self.backend.name, argument=argument, expected=expected, got=got, hint=hint
        )

    # ---- what the adaptor's wrapper calls

    def take(self, names: Sequence[str], args: Sequence[Any]) -> None:
        """Set what :meth:`given` gives."""
        self._now, self._given = (names, args), None

    def launch(self) -> None:
        """Run the steps."""
        stream = self.stream()
        for step in self.steps:
            step(stream)

    def _known(self) -> dict[str, Any]:
        if self._given is None:
            self._given = dict(zip(*self._now, strict=False))
        return self._given

    def _derived(self, tensor: Tensor, view: Tensor) -> Tensor:
        self.held.append(view)  # ids name tensors while they live
        self._origins[id(view)] = tensor
        return view

    def _renamed(self, error: ArgumentError, arguments: Mapping[str, Any]) -> ArgumentError:
        """The same error with FastDeploy's names of the op and argument."""
        tensor = arguments.get(error.argument)
        while id(tensor) in self._origins:
            tensor = self._origins[id(tensor)]
        call = zip(*self._call, strict=False)
        names = (name for name, arg in call if arg is tensor and tensor is not None)
        argument = next(names, error.argument)
        return ArgumentError(
            op=self.op,
            backend=self.backend.name,
            argument=argument,
            expected=error.expected,
            got=error.got,
            hint=error.hint,
        )


class KeptPlan:
    """A plan for the caller's tensors, which ends with any of them."""

    __slots__ = ("addresses", "attributes", "held", "outputs", "pick", "references", "run")

    def __init__(
        self, plan: Plan, args: tuple[Any, ...], pick: Pick, others: Pick, outputs: Pick, end: Callable[[Any], None]
    ) -> None:
        launch, stream = plan.steps[0] if len(plan.steps) == 1 else _together(plan.steps), plan.stream
        self.run: Callable[[], None] = partial(launch, 0) if plan.backend.device == "cpu" else lambda: launch(stream())
        self.held = plan.held
        tensors = pick(args)
        self.pick, self.outputs = pick, outputs
        self.addresses = tuple(map(data_ptr, tensors))
        self.references = list(map(weakref.ref, tensors, repeat(end)))
        self.attributes = others(args)
        """Keep references, so that ids stay unique."""


def _together(steps: Sequence[Launch]) -> Launch:
    def launch(stream: int) -> None:
        for step in steps:
            step(stream)

    return launch


def _is_strided(tensor: Any) -> bool:
    return isinstance(tensor, paddle.Tensor) and not tensor.is_contiguous() and 0 not in tensor.shape


def _read_only(op: str, name: str) -> bool:
    operand = get_op(op).by_name.get(name)
    return operand is not None and operand.role is Role.IN


def _device_of(tensor: Tensor) -> str:
    return "cpu" if tensor.place.is_cpu_place() else f"gpu:{tensor.place.gpu_device_id()}"


def dtype_of(tensor: Tensor) -> str:
    """As NumPy calls it."""
    return str(tensor.dtype).rpartition(".")[2]
