"""A measured case: ops in order over one set of tensors, checked against the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.errors import SpecDecError
from specdec_hal.ops import get_op
from specdec_hal.ops.bits import difference
from specdec_hal.ops.inputs.generate import poison
from specdec_hal.ops.spec import Role
from specdec_hal.plugin.backend import Backend, BoundOp
from specdec_hal.tensors.device import Device

Array = NDArray[Any]
WarmCold = tuple[float | None, float | None]


@dataclass(frozen=True)
class OpCall:
    """One op: its tensors as NumPy arrays (the same array in two calls is one tensor), and its attributes."""

    op: str
    inputs: Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """One row of a suite.

    `calls(seed)` returns the measured calls with fresh inputs.
    `moved`: least bytes read or written, for the floor. `target`: goal in us (warm, cold). `peers`: published figures
    of other implementations. `checked`: compare with the reference; False only if that takes minutes, with
    `check(measured calls, outputs by id of their array)` instead.
    """

    label: str
    group: str
    calls: Callable[[int], Sequence[OpCall]]
    moved: int
    target: WarmCold = (None, None)
    peers: Mapping[str, WarmCold] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    checked: bool = True
    check: Callable[[Sequence[OpCall], Mapping[int, Array]], None] | None = None


def alone(call: Callable[[int], OpCall]) -> Callable[[int], Sequence[OpCall]]:
    """The calls of a case that is one op."""
    return lambda seed: (call(seed),)


class WrongResult(SpecDecError, AssertionError):
    """A measured kernel differs from the reference."""


class Prepared:
    """A case's inputs and reference results, on the host until `upload`."""

    def __init__(self, case: Case, backend: Backend, device: Device, seed: int) -> None:
        self.case, self.backend, self.device = case, backend, device
        self.calls = case.calls(seed)
        self._expected = _reference_results(self.calls) if case.checked else {}
        self._tensors: dict[int, Any] = {}  # by the id() of their inputs, which self.calls keeps alive
        self.plans: list[BoundOp] = []
        self._changed: list[tuple[Any, Any]] = []

    def upload(self) -> None:
        """Tensors on the device, bound ops, and copies of what they change."""
        self.plans = [self._bind(call) for call in self.calls]
        self._poison()
        self._changed = [(tensor, self.device.copy(tensor)) for tensor in self._inout()]

    def launch(self, stream: int) -> None:
        """Enqueue the ops."""
        for plan in self.plans:
            plan.launch(stream)

    def restore(self) -> None:
        """Restore the first values of changed tensors, on the current stream."""
        for tensor, saved in self._changed:
            tensor[...] = saved

    def check(self) -> None:
        """Run once from the first values, and compare with the reference; WrongResult if anything differs."""
        if not self.plans:
            self.upload()
        self.restore()
        self._poison()
        self.launch(self.device.stream())
        outputs = {id(array): self.device.download(self._tensors[id(array)]) for _, array in self._written()}
        if self.case.check is not None:
            self.case.check(self.calls, outputs)
        if self.case.checked:
            self._compare(outputs)

    def _bind(self, call: OpCall) -> BoundOp:
        shared = {name: value for name, value in call.inputs.items() if isinstance(value, np.ndarray)}
        for value in shared.values():
            if id(value) not in self._tensors:
                self._tensors[id(value)] = self.device.upload(value)
        tensors = {name: self._tensors[id(value)] for name, value in shared.items()}
        return self.backend.bind(call.op, **{**call.inputs, **tensors})

    def _written(self) -> list[tuple[str, Array]]:
        """What the calls write, by name, each array once."""
        found: dict[int, tuple[str, Array]] = {}
        for call in self.calls:
            for name, operand in get_op(call.op).by_name.items():
                array = call.inputs.get(name)
                if operand.role is not Role.IN and isinstance(array, np.ndarray):
                    found[id(array)] = (name, array)
        return list(found.values())

    def _inout(self) -> list[Any]:
        """Tensors that an op both reads and writes."""
        found: dict[int, Any] = {}
        for call in self.calls:
            for name, operand in get_op(call.op).by_name.items():
                array = call.inputs.get(name)
                if operand.role is Role.INOUT and id(array) in self._tensors:
                    found[id(array)] = self._tensors[id(array)]
        return list(found.values())

    def _poison(self) -> None:
        """Poison tensors that are only written."""
        read = {id(a) for c in self.calls for n, a in c.inputs.items() if self._reads(c.op, n)}
        for _, array in self._written():
            if id(array) not in read:
                name = "bfloat16" if array.dtype == np.uint16 else str(array.dtype)
                self.device.write(self._tensors[id(array)], slice(None), np.asarray(poison(name)).item())

    @staticmethod
    def _reads(op: str, name: str) -> bool:
        operand = get_op(op).by_name.get(name)
        return operand is not None and operand.role is not Role.OUT

    def _compare(self, outputs: Mapping[int, Array]) -> None:
        for name, array in self._written():  # one by one: two ops may use one name for different tensors
            found = difference({name: outputs[id(array)]}, {name: self._expected[id(array)]})
            if found is not None:
                raise WrongResult(f"{self.case.label}: {found}: not measured")


def _reference_results(calls: Sequence[OpCall]) -> dict[int, Array]:
    """Every array of the calls after the reference ran, by id."""
    from specdec_hal.backends.reference.backend import ReferenceBackend

    reference = ReferenceBackend()
    copies = {id(v): v.copy() for call in calls for v in call.inputs.values() if isinstance(v, np.ndarray)}
    for call in calls:
        inputs = {n: copies[id(v)] if isinstance(v, np.ndarray) else v for n, v in call.inputs.items()}
        getattr(reference, call.op)(**inputs)
    return copies
