"""Calls of the ops over slots on the tensors of a decode step, for the suites `verify` and `step`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.bench.case import Array, OpCall
from specdec_hal.bench.decode_step import DecodeStep
from specdec_hal.ops import get_op
from specdec_hal.ops.inputs.rows import numpy_dtype
from specdec_hal.ops.spec import AttrSpec
from specdec_hal.ops.vocabulary import tensor

_FIXED = {"accept_policy": "NORMAL", "end_at_limit": False, "verify_window": 2, "token_order": "SLOT"}
"""Attributes that are the same in every call."""


class StepCalls:
    """The tensors of one step, shared by all calls; outputs are allocated on first use."""

    def __init__(self, step: DecodeStep) -> None:
        state = step.state()
        rows = step.rows(state)
        self.step = step
        self.tensors: dict[str, Array] = {**state, **rows}
        self._batch = {"state": state, "rows": rows}
        self.size = sizes(step, max(int(state["seq_lens_this_time"].sum()), 1))

    def call(self, op: str, **given: Any) -> OpCall:
        """One call; `given` overrides arrays and attributes of the step."""
        spec, inputs = get_op(op), dict(given)
        for attr in spec.attrs:
            if attr.name in _FIXED:
                inputs.setdefault(attr.name, _FIXED[attr.name])
        attrs = {attr.name: _value(attr, inputs.get(attr.name, attr.default)) for attr in spec.attrs}
        for operand in spec.operands:
            name = operand.name
            if name in inputs or (operand.optional and name not in self.tensors):
                continue
            if operand.wanted(attrs):
                inputs[name] = self._tensor(name)
        return OpCall(op, inputs)

    def verify(self, strategy: str, **given: Any) -> OpCall:
        """verify_draft_tokens, with what the strategy compares drafts with."""
        if strategy in ("GREEDY", "TARGET_MATCH") and "target_tokens" not in self.tensors:
            self.tensors["target_tokens"] = self.step.target_tokens(**self._batch)
        if strategy == "TOPP" and "candidate_ids" not in self.tensors:
            self.tensors.update(self.step.candidate_lists(**self._batch))
        if strategy == "REJECTION" and "target_probs" not in self.tensors:
            self.tensors["target_probs"] = self.step.target_probs(**self._batch)
        return self.call("verify_draft_tokens", strategy=strategy, **given)

    def accepted(self) -> None:
        """Fill in the results of verification: decoding slots have emitted some tokens."""
        m, s = self.step.slots, self.step.width
        rng = np.random.default_rng([self.step.seed, 5])
        runs = (self.tensors["seq_lens_this_time"] > 0) & (self.tensors["seq_lens_encoder"] == 0)
        count = np.where(runs, rng.integers(1, s + 1, m), 0).astype(np.int32)
        tokens = rng.integers(0, self.step.vocabulary, (m, s))
        tokens[np.arange(s) >= count[:, None]] = -1
        self.tensors |= {"accept_num": count, "accept_tokens": tokens}

    def _tensor(self, name: str) -> Array:
        if name not in self.tensors:
            spec = tensor(name)
            shape = [dim.value(self.size) for dim in spec.dims]
            self.tensors[name] = np.zeros(shape, numpy_dtype(spec.dtypes[0]))
        return self.tensors[name]


def _value(attr: AttrSpec, value: Any) -> Any:
    """Enumerated attributes are given by name."""
    return attr.kind[value] if isinstance(value, str) and issubclass(attr.kind, IntEnum) else value


def hidden_rows(rows: int, width: int, seed: int) -> NDArray[np.uint16]:
    """bfloat16 bits of rows of hidden states."""
    return np.random.default_rng([seed, 6]).integers(0, 1 << 15, (rows, width), np.uint16)


def least_bytes(step: DecodeStep, op: str, attrs: Mapping[str, Any], leave_out: tuple[str, ...] = ()) -> int:
    """Bytes of an op's tensors, each counted once. Excluded are absent ones and those read in part, which the caller
    adds.
    """
    size = {**sizes(step, step.slots * step.width), "L": 1, "I_cap": 1, "E": 2, "C": step.candidates, "V": 1, "D": 1}
    total = 0
    for operand in get_op(op).operands:
        if operand.wanted(attrs) and operand.name not in leave_out:
            extents = [dim.value(size) for dim in operand.dims(attrs)]
            total += math.prod(extents) * numpy_dtype(operand.tensor.dtypes[0]).itemsize
    return total


def sizes(step: DecodeStep, tokens: int) -> dict[str, int]:
    """The extents of a step's tensors; `tokens`: of the packed input."""
    m, rows = step.slots, step.slots * step.width
    return {"M": m, "B": m, "S": step.width, "T_cap": tokens, "R_cap": rows, "A_cap": rows}
