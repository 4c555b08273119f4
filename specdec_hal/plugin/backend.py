"""The interface between hardware vendors and runners.

A plug-in answers the `specdec_backends` hook with a :class:`BackendSpec`; its factory returns a :class:`Backend`
subclass. The subclass supplies :meth:`Backend.plan` (turn a checked call into something to launch) and a table of
:class:`Capability`; validation, binding, fallback, debug checks and explanations live here, once for all backends.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from specdec_hal.errors import ArgumentError, ConfigError, PluginError, UnsupportedError
from specdec_hal.ops import OPS, TokenOrder, get_op
from specdec_hal.ops.validate import Call, check_call, check_outputs, check_values
from specdec_hal.tensors.graph_capture import check_stream
from specdec_hal.tensors.views import as_numpy
from specdec_hal.text import did_you_mean, short

API_VERSION = 2
"""Version of the op contracts and of this interface. A plug-in states the one it was written for."""

AUTO = "auto"
"""Configured instead of a name: the best available backend."""

Launch = Callable[[int], None]
"""Runs a planned op on a stream, given as an integer handle (0: the default, or no streams at all)."""

_log = logging.getLogger("specdec_hal")


class Observer(Protocol):
    """Intercepts launches of bound ops."""

    def __call__(self, call: Call, launch: Callable[[], None]) -> None:
        """Must call `launch` once."""

    def summary(self) -> dict[str, Any]:
        """Counts for the metrics."""


@dataclass(frozen=True)
class Probe:
    """Whether a backend can run here; if not, the reason and a hint."""

    available: bool
    reason: str = ""
    hint: str = ""


@dataclass(frozen=True)
class BackendSpec:
    """How a plug-in announces a backend.

    `probe` must be quick and import no accelerator library; `factory` gets the options of the YAML file's
    ``backend.options``. Of the available backends, ``auto`` takes the one with the highest `priority`.
    """

    name: str
    api_version: int
    probe: Callable[[], Probe]
    factory: Callable[[Mapping[str, Any]], Backend]
    priority: int = 0
    description: str = ""


_HOOKS = ("plan", "workspace", "device_name", "stream_of", "to_host", "capabilities", "token_order", "asynchronous")
"""What a backend may define."""
_FORMER = {"place": "device_name"}
"""Former names of these."""
_ALIKE = 0.8
"""Least similarity of a name to one of these that can only be a slip."""
_ATTRS = {spec.name: spec for op in OPS.values() for spec in op.attrs}
"""Attributes by name: one of the same name has the same type in every op."""


@dataclass(frozen=True)
class Capability:
    """A backend's support of one op. Empty means no limit beyond the contract's.

    `attrs`: attribute name -> supported values; of an enum, members or their names in any case. `dtypes`: tensor name
    -> supported dtypes. `limits`: symbol -> largest extent. `graph_safe`: a bound call can be captured in a device
    graph and replayed.
    """

    attrs: Mapping[str, Collection[Any]] = field(default_factory=dict)
    dtypes: Mapping[str, Collection[str]] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    graph_safe: bool = False

    def __post_init__(self) -> None:
        attrs = {
            name: frozenset(_ATTRS[name].named(value) if name in _ATTRS else value for value in values)
            for name, values in self.attrs.items()
        }
        object.__setattr__(self, "attrs", attrs)

    def refusal(self, call: Call) -> str | None:
        """Why this call is not covered, or None."""
        for name, values in self.attrs.items():
            if call.attrs[name] not in values:
                return f"{name}={_show(call.attrs[name])} (has: {', '.join(sorted(map(_show, values)))})"
        for name, dtypes in self.dtypes.items():
            if call.dtypes.get(name, next(iter(dtypes))) not in dtypes:
                return f"{name} of dtype {call.dtypes[name]} (has: {', '.join(sorted(dtypes))})"
        for symbol, limit in self.limits.items():
            if call.symbols.get(symbol, 0) > limit:
                return f"{symbol} = {call.symbols[symbol]} (largest: {limit})"
        return None

    def modes(self) -> str:
        """The limits as one line, '' if there are none."""
        parts = [f"{name}: {'|'.join(sorted(map(_show, values)))}" for name, values in self.attrs.items()]
        parts += [f"{name}: {'|'.join(sorted(dtypes))}" for name, dtypes in self.dtypes.items()]
        parts += [f"{symbol} <= {limit}" for symbol, limit in self.limits.items()]
        return "; ".join(parts)


_STREAMS = 1 << 63


def _declared_rank(call: Call, name: str, tensor: Any) -> NDArray[Any] | None:
    if tensor is None:
        return None
    array = as_numpy(tensor)
    rank = len(call.op.by_name[name].dims(call.attrs))
    return array if array.ndim == rank else array.reshape(array.shape[:rank])


def _default_stream() -> int:
    return 0


def _show(value: Any) -> str:
    return value.name if isinstance(value, Enum) else str(value)


@dataclass(frozen=True)
class Layout:
    """Shape and dtype of a tensor the caller must supply."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class OpStatus:
    """One line of :meth:`Backend.explain`. `via` names the fallback that serves the op, if any."""

    op: str
    available: bool
    modes: str = ""
    reason: str = ""
    hint: str = ""
    via: str = ""


class BoundOp:
    """A checked call that can be launched repeatedly: ``op(stream)``; a `backend` binds a `call` to its `launch`.

    It keeps its tensors alive and works on their memory, so write into them in place: ``x += y`` on a Paddle tensor
    makes a new tensor under the old name, which the plan does not see.
    """

    __slots__ = ("_stream", "backend", "call", "launch")

    def __init__(self, backend: Backend, call: Call, launch: Launch) -> None:
        self.backend, self.call, self.launch = backend, call, launch
        self._stream = backend.stream_of(call)

    def __call__(self, stream: int | None = None) -> None:
        """Launch on a stream; without one, on the current stream of the tensors' framework."""
        if self.backend.debug:
            check_values(self.call, self.backend.name, self.backend.to_host)
        if stream is None:
            stream = self._stream()
        elif type(stream) is not int or not 0 <= stream < _STREAMS:
            stream = self._checked(stream)
        check_stream(self.call.op.name, stream)
        shadow = self.backend.shadow
        if shadow is None:
            self.launch(stream)
        else:
            shadow(self.call, partial(self.launch, stream))
        if self.backend.debug:
            check_outputs(self.call, self.backend.name, self.backend.to_host)

    def _checked(self, stream: Any) -> int:
        """A stream handle as an int; ArgumentError if it is not one."""
        if isinstance(stream, (int, np.integer)) and not isinstance(stream, bool) and 0 <= stream < _STREAMS:
            return int(stream)
        raise ArgumentError(
            op=self.call.op.name,
            backend=self.backend.name,
            argument="stream",
            expected="the handle of a stream, an int in 0..2^63-1",
            got=short(stream),
            hint="leave it out for the current stream, or pass what the framework gives as an int",
        )

    def __repr__(self) -> str:
        return f"<bound {self.call.op.name} on {self.backend.name}>"


class Backend:
    """One kind of hardware behind the op contract.

    ``backend.verify_draft_tokens(...)`` checks and runs an op; ``backend.bind("verify_draft_tokens", ...)`` checks once
    and returns a :class:`BoundOp`. Tensors are positional in the OpSpec's order or by name, attributes by name.
    Subclasses set `name`, `device` ("cpu", "cuda"), `token_order`, `capabilities`, and implement `plan`.
    """

    name = ""
    device = "cpu"
    asynchronous = False
    """Whether launches return before the device has finished."""
    token_order = TokenOrder.SLOT
    capabilities: Mapping[str, Capability] = {}

    def __init__(self) -> None:
        self.debug = False
        """Check values (monotonic offsets, ids in range, NaN rows) before and after every launch and raise."""
        self.shadow: Observer | None = None
        """Intercepts this backend's launches (:mod:`specdec_hal.engine.shadow_check`)."""
        self.fallbacks: tuple[Backend, ...] = ()
        self.fallback_calls: dict[str, int] = {}
        """How many launches of each op went to a fallback, for metrics."""

    # For subclasses

    def plan(self, call: Call) -> Launch:
        """Prepare a checked call. The tensors in `call.tensors` are the caller's, in any framework."""
        raise UnsupportedError(f"backend '{self.name}' does not implement '{call.op.name}'")

    def workspace(self, op: str, **sizes: int) -> dict[str, Layout]:
        """Tensors that the caller must allocate for `op` besides its inputs and outputs, by operand name.

        `sizes` are contract symbols (M, L, V, ...) and integer attributes. The base needs none.
        """
        get_op(op)
        return {}

    @property
    def device_name(self) -> str:
        """Device of a runner's model and tensors: "cpu", "cuda:0"."""
        return self.device

    def stream_of(self, call: Call) -> Callable[[], int]:
        """Returns the default stream of a launch. The base has no streams."""
        return _default_stream

    def to_host(self, tensor: Any) -> NDArray[Any]:
        """The tensor's values as NumPy, for debug checks."""
        return as_numpy(tensor)

    # For callers

    def arrays(self, call: Call) -> dict[str, NDArray[Any] | None]:
        """The call's tensors in host memory as NumPy views of their declared rank: [N, 1] for [N] becomes [N]."""
        return {name: _declared_rank(call, name, tensor) for name, tensor in call.tensors.items()}

    def check_hooks(self) -> None:
        """PluginError for a method or attribute that is almost one of a backend's, which nothing would use."""
        own = [base for base in type(self).__mro__ if issubclass(base, Backend) and base is not Backend]
        for name in {name for base in own for name in vars(base)}:
            if name.startswith("_") or hasattr(Backend, name) or name in OPS:
                continue
            near = _FORMER.get(name) or next(iter(difflib.get_close_matches(name, _HOOKS, 1, _ALIKE)), None)
            if near is not None:
                raise PluginError(f"backend '{self.name}': nothing uses its '{name}'; did you mean '{near}'?")

    def check_capabilities(self) -> None:
        """PluginError for a capability with names outside the contract, which would never match."""
        for op, capability in self.capabilities.items():
            spec = OPS.get(op)
            if spec is None:
                raise PluginError(f"backend '{self.name}': capabilities name the op '{op}'{did_you_mean(op, OPS)}")
            for kind, names, known in (
                ("attribute", capability.attrs, spec.attr_by_name),
                ("tensor", capability.dtypes, spec.by_name),
                ("size", capability.limits, spec.symbols),
            ):
                for name in names:
                    if name not in known:
                        hint = did_you_mean(str(name), known) or f"; known: {', '.join(known)}"
                        raise PluginError(f"backend '{self.name}': capability of {op}: no {kind} '{name}'{hint}")
            for name, values in capability.attrs.items():
                odd = [value for value in values if not isinstance(value, spec.attr_by_name[name].kind)]
                if odd or not values:
                    expected = spec.attr_by_name[name].allowed()
                    got = short(odd[0]) if odd else "nothing"
                    raise PluginError(f"backend '{self.name}': {op}: {name}: expected some of {expected}, got {got}")
            for name, dtypes in capability.dtypes.items():
                odd = sorted(set(dtypes) - set(spec.by_name[name].tensor.dtypes))
                if odd or not dtypes:
                    expected = " | ".join(spec.by_name[name].tensor.dtypes)
                    got = odd[0] if odd else "nothing"
                    raise PluginError(
                        f"backend '{self.name}': {op}: dtypes of {name}: expected some of {expected}, got {got}"
                    )

    def capability(self, op: str) -> Capability | None:
        """This backend's support of `op`, or None."""
        get_op(op)
        return self.capabilities.get(op)

    def set_fallback(self, backends: Iterable[Backend]) -> None:
        """Let these backends, in order, serve unsupported calls. Off by default."""
        self.fallbacks = tuple(backends)

    def bind(self, op: str, /, *args: Any, **kwargs: Any) -> BoundOp:
        """Check the arguments once and return a plan; raises ArgumentError or UnsupportedError."""
        call = check_call(
            get_op(op),
            args,
            kwargs,
            backend=self.name,
            device=self.device,
            attr_defaults={"token_order": self.token_order},
        )
        server = self._server(call)
        launch = server.plan(call)
        return BoundOp(self, call, launch if server is self else self._counted(op, launch))

    def _server(self, call: Call) -> Backend:
        """This backend, or the first fallback that covers the call."""
        reasons: list[str] = []
        for backend in (self, *self.fallbacks):
            capability = backend.capabilities.get(call.op.name)
            refusal = "the op is missing" if capability is None else capability.refusal(call)
            if refusal is None and backend.device != self.device:
                refusal = f"it works on {backend.device}, not {self.device}"
            if refusal is None:
                if backend is not self and call.op.name not in self.fallback_calls:
                    _log.warning("%s falls back to backend '%s' (%s)", call.op.name, backend.name, reasons[0])
                    self.fallback_calls[call.op.name] = 0
                return backend
            reasons.append(f"{backend.name}: {refusal}")
        hint = "choose a backend that has it, or allow one under 'fallback: {allow: [...]}'"
        raise UnsupportedError(f"{call.op.name} [{self.name}]: not supported: {'; '.join(reasons)}; {hint}")

    def _counted(self, op: str, launch: Launch) -> Launch:
        def run(stream: int) -> None:
            self.fallback_calls[op] += 1
            launch(stream)

        return run

    def __getattr__(self, name: str) -> Callable[..., None]:
        spec = OPS.get(name)
        if spec is None:
            raise AttributeError(f"backend '{self.name}' has no attribute or op '{name}'")

        def run(*args: Any, stream: int | None = None, **kwargs: Any) -> None:
            self.bind(name, *args, **kwargs)(stream)

        run.__name__ = name
        run.__doc__ = spec.doc
        # Stored, so that later look-ups skip this method.
        self.__dict__[name] = run
        return run

    def explain(self) -> list[OpStatus]:
        """For every op of the contract: available or not, why, and by whom."""
        return [self._status(op) for op in OPS]

    def _status(self, op: str) -> OpStatus:
        own = self.capabilities.get(op)
        if own is not None:
            return OpStatus(op, True, own.modes())
        for backend in self.fallbacks:
            capability = backend.capabilities.get(op)
            if capability is not None:
                return OpStatus(op, True, capability.modes(), f"{self.name} lacks it", via=backend.name)
        hint = "choose another backend, or allow a fallback that has it"
        return OpStatus(op, False, reason=f"{self.name} does not implement it", hint=hint)

    def __repr__(self) -> str:
        return f"<Backend {self.name}>"


def check_backend_options(given: Iterable[str], known: Collection[str]) -> None:
    """ConfigError for the first name under ``backend.options`` that the backend does not know."""
    for name in given:
        if name not in known:
            raise ConfigError(
                f"backend.options.{name}: unknown option{did_you_mean(name, known)}; options: {', '.join(known)}"
            )
