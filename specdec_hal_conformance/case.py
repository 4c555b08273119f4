"""A test case: named inputs of one op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from specdec_hal.ops import get_op
from specdec_hal.ops.spec import FLOATS
from specdec_hal.plugin.backend import Layout

Inputs = dict[str, Any]
"""Arguments by name: NumPy arrays (bfloat16 as uint16, outputs poisoned) and attributes."""
Workspace = Callable[..., Mapping[str, Layout]]


@dataclass(frozen=True)
class Case:
    """Inputs of one op. `make` gets the backend's `workspace` method, for the size of an n-gram index.

    `name` is unique within the op; its part before the colon is the kind: edge, generated, hostile or trace. `rules`:
    ids of the contract's rules that the case tests. `expected`: outputs by hand (see `expectations`), checked besides
    equality with the reference. `note`: origin of generated inputs.
    """

    op: str
    name: str
    make: Callable[[Workspace], Inputs] = field(repr=False, compare=False)
    rules: tuple[str, ...] = ()
    expected: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    note: str = ""

    @property
    def kind(self) -> str:
        """edge, generated, hostile or trace."""
        return self.name.partition(":")[0]

    @property
    def id(self) -> str:
        """``op/name``, as in reports and expected-failure files."""
        return f"{self.op}/{self.name}"


def mode_of(op: str, inputs: Mapping[str, Any]) -> str:
    """The call's row in the result table: its strategy, policy, order or logits' dtype."""
    spec = get_op(op)
    parts = []
    for attr in spec.attrs:
        value = inputs.get(attr.name)
        if isinstance(value, Enum) and attr.name in ("strategy", "match_policy", "token_order"):
            parts.append(value.name)
    if op == "gather_next_token":
        parts.append("packed" if inputs["is_speculative"] else "scattered")
    if inputs.get("draft_probs") is not None:
        parts.append("dense")
    if inputs.get("index") is not None and "match_policy" in spec.attr_by_name:
        parts.append("index")
    if spec.by_name.get("logits") is not None and op != "gather_accepted":
        dtype = str(inputs["logits"].dtype).replace("uint16", "bfloat16")
        parts += [dtype] if dtype in FLOATS else []
    return " ".join(parts)
