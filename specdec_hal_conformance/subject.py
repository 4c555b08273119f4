"""The backend under test: inputs in, outputs and damage out."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.errors import SpecDecError, UnsupportedError
from specdec_hal.ops import get_op
from specdec_hal.ops.bits import same_bits
from specdec_hal.ops.spec import Role
from specdec_hal.ops.validate import check_call
from specdec_hal.plugin.backend import Backend, BoundOp, Layout
from specdec_hal_conformance.case import Inputs
from specdec_hal_conformance.guarded import GuardedDevice, Placed, device_for

Array = NDArray[Any]

OPAQUE = ("index",)
"""Written tensors of backend-specific layout."""


class CallFailed(Exception):
    """The backend raised on a valid call."""


class NotClaimed(Exception):
    """The backend refused a call that its capabilities do not cover."""


@dataclass
class Outcome:
    """Results of a call. `damage`: forbidden writes."""

    outputs: dict[str, Array]
    opaque: dict[str, Array]
    damage: list[str] = field(default_factory=list)


def written(op: str, inputs: Mapping[str, Any]) -> list[str]:
    """The names among `inputs` that the op writes."""
    operands = get_op(op).by_name
    return [n for n, o in operands.items() if o.role is not Role.IN and isinstance(inputs.get(n), np.ndarray)]


class Subject:
    """A backend and the device its tensors live on."""

    def __init__(self, backend: Backend, device: GuardedDevice | None = None) -> None:
        backend.check_capabilities()
        self.backend = backend
        self.device = device or device_for(backend)

    @property
    def name(self) -> str:
        """The backend's."""
        return self.backend.name

    def workspace(self, op: str, **sizes: int) -> Mapping[str, Layout]:
        """The backend's `workspace`; CallFailed without the size of the op's index."""
        with _failing(f"workspace('{op}')"):
            layouts = self.backend.workspace(op, **sizes)
        if "index" in get_op(op).by_name and not isinstance(layouts.get("index"), Layout):
            raise CallFailed(
                f"workspace('{op}', M=..., L=..., max_ngram_size=...) gives no Layout for 'index', the n-gram index: "
                "implement Backend.workspace, or subclass specdec_hal.backends.index.IndexBackend; one that needs no "
                "index returns {'index': Layout((M, 0), 'uint8')}"
            )
        return layouts

    def refusal(self, op: str, inputs: Mapping[str, Any]) -> str | None:
        """Why the backend's capabilities do not cover a call, or None. Fallbacks do not count."""
        capability = self.backend.capability(op)
        if capability is None:
            return "the op is missing"
        return capability.refusal(self._checked(op, inputs))

    def _checked(self, op: str, inputs: Mapping[str, Any]) -> Any:
        order = {"token_order": self.backend.token_order}
        return check_call(get_op(op), (), inputs, backend=self.name, attr_defaults=order)

    def place(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Placed], dict[str, Any]]:
        """(placed arrays by name, arguments for a call)."""
        placed = {name: self.device.place(v) for name, v in inputs.items() if isinstance(v, np.ndarray)}
        arguments = {name: placed[name].tensor if name in placed else v for name, v in inputs.items()}
        return placed, arguments

    def run(self, op: str, inputs: Mapping[str, Any]) -> Outcome:
        """Call the op on copies. Raises as :meth:`bind` and :meth:`launch` do."""
        placed, arguments = self.place(inputs)
        plan = self.bind(op, arguments)
        self.launch(plan)
        return self.outcome(op, inputs, placed)

    def bind(self, op: str, arguments: Mapping[str, Any]) -> BoundOp:
        """A plan on placed tensors. Raises NotClaimed if capabilities exclude it, else CallFailed."""
        with _failing("bind()"):
            try:
                return self.backend.bind(op, **arguments)
            except UnsupportedError:
                reason = self.refusal(op, arguments)
                if reason is None:
                    raise
        raise NotClaimed(f"{op}: {reason}")

    def launch(self, plan: BoundOp) -> None:
        """Run a plan to its end. Raises CallFailed if it raises."""
        with _failing("the launch"):
            plan(self.device.stream())
            self.device.synchronize()

    def outcome(self, op: str, inputs: Mapping[str, Any], placed: Mapping[str, Placed]) -> Outcome:
        """Read back outputs, and compare everything else with `inputs`."""
        names = written(op, inputs)
        outputs = {n: placed[n].value().copy() for n in names if n not in OPAQUE}
        opaque = {n: placed[n].value().copy() for n in names if n in OPAQUE}
        damage = [f"'{name}': {found}" for name, tensor in placed.items() if (found := tensor.damage())]
        for name, tensor in placed.items():
            if name not in names and not same_bits(tensor.value(), inputs[name]).all():
                damage.append(f"input '{name}' was written")
        return Outcome(outputs, opaque, damage)


@contextmanager
def _failing(what: str) -> Any:
    try:
        yield
    except SpecDecError as error:
        raise CallFailed(f"{what} refused a valid call: {error}") from error
    except Exception as error:
        raise CallFailed(f"{what} raised {type(error).__name__}: {error}") from error


REFERENCE = ReferenceBackend()


def reference_outputs(op: str, inputs: Mapping[str, Any]) -> dict[str, Array]:
    """The reference's outputs without opaque ones. Look-ups run without an index."""
    call: Inputs = {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in inputs.items() if n not in OPAQUE}
    if any(name in inputs and not get_op(op).by_name[name].optional for name in OPAQUE):
        return {}
    with np.errstate(all="ignore"):
        getattr(REFERENCE, op)(**call)
    return {name: call[name] for name in written(op, call)}
