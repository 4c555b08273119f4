"""The contract as code: one OpSpec per op.

`spec` defines OpSpecs, `vocabulary` the tensors that ops exchange; the modules below have the ops by section of the
contract. `validate` checks calls; `cpp` writes C++ headers; `specdec_hal_conformance` renders the contract's page and
generates test inputs.
"""

from __future__ import annotations

from collections.abc import Mapping

from specdec_hal.errors import UnsupportedError
from specdec_hal.ops import (
    bitmask,
    draft_model,
    drafter,
    ngram,
    output,
    phases,
    recurrent,
    sampling,
    schedule,
    step_index,
    verify,
)
from specdec_hal.ops.enums import (
    AcceptPolicy,
    Activation,
    LogprobMode,
    MatchPolicy,
    Purpose,
    SlotAction,
    Storage,
    Strategy,
    TokenOrder,
)
from specdec_hal.ops.spec import OpSpec
from specdec_hal.text import did_you_mean

OPS: Mapping[str, OpSpec] = {
    spec.name: spec
    for module in (
        step_index,
        sampling,
        verify,
        ngram,
        output,
        schedule,
        phases,
        draft_model,
        bitmask,
        drafter,
        recurrent,
    )
    for spec in module.OPS
}


def get_op(name: str) -> OpSpec:
    """The OpSpec of that name; UnsupportedError, with similar names, if there is none."""
    try:
        return OPS[name]
    except KeyError:
        hint = did_you_mean(name, OPS) or f"; ops: {', '.join(OPS)}"
        raise UnsupportedError(f"no op '{name}' in the contract{hint}") from None


__all__ = [
    "OPS",
    "AcceptPolicy",
    "Activation",
    "LogprobMode",
    "MatchPolicy",
    "OpSpec",
    "Purpose",
    "SlotAction",
    "Storage",
    "Strategy",
    "TokenOrder",
    "get_op",
]
