"""Ops on the state of slots: draft model, scheduling, stopping and ending.

Inputs are drawn from the ops' specs (:func:`specdec_hal.ops.inputs.generate.generate`): 256 slots that decode,
five drafts each, contexts of up to 2,048 tokens. An op that changes its inputs sees its own results when it is
repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from specdec_hal.bench.case import Case, OpCall, alone
from specdec_hal.ops.inputs.generate import generate

TARGET_US = 2.5
_SIZES = {"M": 256, "B": 256, "S": 6, "L": 2048}
_DECODE: Mapping[str, Any] = {**_SIZES, "states": ("decode",)}
_ROWS = {**_DECODE, "D": 4096, "dtype": "bfloat16"}
_OPS: Mapping[str, Mapping[str, Any]] = {
    "schedule_slots": {**_SIZES, "states": ("decode", "prefill"), "I_cap": 512},
    "set_stop_sequences": {**_DECODE, "Q": 4, "Z": 8, "end_after_stop": True},
    "limit_thinking": {**_DECODE, "V": 32_000},
    "reasoning_constraint": {**_DECODE, "V": 1_000, "dtype": "float32", "nan": False},
    "truncate_drafts": {**_DECODE, "V": 32_000, "U": 256 * 6, "Y": 1_000},
    "write_accepted": _DECODE,
    "clear_accept_num": _DECODE,
    "insert_first_token": {**_SIZES, "states": ("decode", "prefill")},
    "prepare_block_inputs": {**_DECODE, "num_masks": 5, "anchor_only": True, "F_cap": 256 * 6},
    "truncate_by_confidence": _DECODE,
    "select_draft_path": {
        **_DECODE,
        "V": 32_000,
        "D": 256,
        "C_draft": 16,
        "dtype": "bfloat16",
        "nan": False,
        "probs": False,
    },
    "draft_model_preprocess": {**_SIZES, "states": ("decode", "prefill"), "I_cap": 512},
    "draft_model_update": {**_DECODE, "substep": 1},
    "draft_model_postprocess": _DECODE,
}
_STEP = 3  # tokens of a slot in the step before
_MOVED = ("eagle_get_hidden_states", "eagle_gather_hidden_states", "eagle_get_self_hidden_states")
"""For ops that do not move rows of hidden states; those have a floor instead."""


def cases(quick: bool) -> Iterator[Case]:
    """One of each op."""
    for op, options in _OPS.items():
        yield Case(f"{op}, B 256, K 5", op, _alone(op, options), 0, target=(TARGET_US, None), params=dict(_SIZES))
    for op in () if quick else _MOVED:
        calls = _alone(op, _ROWS)
        (call,) = calls(0)
        rows = min(len(call.inputs[name]) for name in ("x", "out", "last_hidden") if name in call.inputs)
        moved = 2 * 2 * rows * _ROWS["D"]
        yield Case(f"{op}, B 256, K 5, D 4,096 bfloat16", op, calls, moved, params={**_SIZES, "D": _ROWS["D"]})


def _alone(op: str, options: Mapping[str, Any]) -> Callable[[int], Sequence[OpCall]]:
    def call(seed: int) -> OpCall:
        inputs = generate(op, seed, **options)
        if "reasoning_seen" in inputs:  # else the op would process the whole text as new
            inputs["reasoning_seen"] = (inputs["step_idx"] - _STEP).astype(inputs["reasoning_seen"].dtype)
        return OpCall(op, inputs)

    return alone(call)
