"""Masks of allowed tokens by brute force, a big integer a mask. See `oracle_slots`."""

from __future__ import annotations

from typing import Any

import numpy as np

Inputs = dict[str, Any]
FORBIDDEN = {"float32": -np.inf, "float16": -np.inf, "uint16": 0xFF80}
"""-inf in bfloat16 has these bits."""


def _allows(a: Inputs, r: int, token: int) -> bool:
    """Whether token may follow output row r."""
    number = int(a["bitmask_rows"][r])
    if number not in range(len(a["bitmask"])):
        return True
    words = a["bitmask"][number].tolist()
    mask = sum((word % 2**32) << (32 * i) for i, word in enumerate(words))
    return 0 <= token < a["vocab_size"] and mask >> min(token, 32 * len(words)) & 1 == 1


def apply_token_bitmask(a: Inputs) -> dict[str, Any]:
    forbidden = FORBIDDEN[str(a["logits"].dtype)]
    return {
        "logits": [
            [x if _allows(a, r, a["first_token"] + c) else forbidden for c, x in enumerate(row)]
            for r, row in enumerate(a["logits"].tolist())
        ]
    }


def truncate_drafts(a: Inputs) -> dict[str, Any]:
    lengths = a["seq_lens_this_time"].tolist()
    for b, slt in enumerate(lengths):
        first = int(a["cu_seqlens_q_output"][b])
        for column in range(1, 0 if a["seq_lens_encoder"][b] > 0 else slt):
            r = first + column - 1
            if r < len(a["bitmask_rows"]) and not _allows(a, r, int(a["draft_tokens"][b, column])):
                lengths[b] = min(lengths[b], column)
    return {"seq_lens_this_time": lengths}
