"""Bytes of bool tensors that are neither 0 nor 1, as views of other frameworks' memory may hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from specdec_hal.ops import SlotAction, Strategy
from specdec_hal_conformance.case import Case
from specdec_hal_conformance.edges.edge import edge
from specdec_hal_conformance.edges.verify import slots

RULE = "conventions#flag"
SET = (2, 3, 128, 254, 255)
"""Bit 0 is clear in some, and bit 7 set in some."""


def flags(*values: int) -> Any:
    """A bool tensor of these bytes."""
    return np.array(values, np.uint8).view(np.bool_)


def edges() -> Iterator[Case]:
    """Every op that takes a flag."""
    silent = len(SET)
    for name in ("stop_flags", "is_block_step"):
        drafts, targets = [[0]] * (silent + 1), np.full(silent + 1, 7, np.int64)
        yield edge(
            "verify_draft_tokens", f"bytes of {name}", RULE,
            {"accept_tokens": [[-1]] * silent + [[7]], "accept_num": [0] * silent + [1]},
            **slots(drafts, Strategy.TARGET_MATCH, {"target_tokens": targets, name: flags(*SET, 0)}),
        )  # fmt: skip
    for name in ("stop_flags", "is_block_step"):
        yield edge(
            "update_model_status", f"bytes of {name}", RULE,
            {
                "stop_flags": [True] * silent + [False], "accept_num": [0] * silent + [1],
                "step_idx": [1] * silent + [2], "has_running": [True],
            },
            {"E": 0, "L": 4}, seq_lens_this_time=[1] * (silent + 1), seq_lens_decoder=[3] * (silent + 1),
            step_idx=[1] * (silent + 1), accept_num=[1] * (silent + 1), accept_tokens=[[5]] * (silent + 1),
            **{name: flags(*SET, 0)},
        )  # fmt: skip
    yield edge(
        "update_model_status", "bytes of flags, and nothing runs", RULE, {"has_running": [False]}, {"E": 0, "L": 4},
        seq_lens_this_time=[1] * silent, accept_tokens=[[5]] * silent, stop_flags=flags(*SET),
    )  # fmt: skip
    kept = {"stop_flags": flags(*SET), "is_block_step": flags(*reversed(SET))}
    yield edge(
        "schedule_slots", "bytes of flags are kept with their slot", RULE, kept, {"L": 2, "I_cap": 2},
        slot_actions=[SlotAction.KEEP] * silent, seq_lens_this_time=[1] * silent, **kept,
    )  # fmt: skip
    yield edge(
        "write_accepted", "bytes of stop_flags", RULE, {"token_ids_all": [[0]] * silent + [[5]]},
        token_ids_all=[[0]] * (silent + 1), accept_tokens=[[5]] * (silent + 1), accept_num=[1] * (silent + 1),
        stop_flags=flags(*SET, 0), seq_lens_this_time=[1] * (silent + 1), seq_lens_decoder=[1] * (silent + 1),
        step_idx=[1] * (silent + 1),
    )  # fmt: skip
    yield edge(
        "limit_thinking", "bytes of stop_flags", RULE, {"accept_tokens": [[5]] * silent + [[7]]}, {"E": 0},
        accept_tokens=[[5]] * (silent + 1), accept_num=[1] * (silent + 1), stop_flags=flags(*SET, 0),
        inject_token_ids=[7], think_end_id=9,
    )  # fmt: skip
    for name, bytes_of in (("stop_flags", flags(*SET, 0)), ("enable_thinking", flags(*SET, 0))):
        yield edge(
            "reasoning_constraint", f"bytes of {name}", RULE, {"reasoning_status": [0] * silent + [2]}, {"L": 2},
            logits=np.zeros((silent + 1, 2), np.float32), seq_lens_encoder=[1] * (silent + 1), allowed_tokens=[1],
            cu_seqlens_q_output=list(range(silent + 2)), think_end_id=9, line_break_id=8, **{name: bytes_of},
        )  # fmt: skip
