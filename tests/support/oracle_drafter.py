"""What trained drafters need, by lists of whole rows. See `oracle_slots`."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np

from tests.support.oracle_bitmask import FORBIDDEN

Inputs = dict[str, Any]


def prepare_block_inputs(a: Inputs) -> dict[str, Any]:
    starts, ids = a["cu_seqlens_q"].tolist(), a["ids_remove_padding"].tolist()
    capacity, positions = len(a["block_token_ids"]), a["seq_lens_decoder"].tolist()
    rows, lengths = [], []
    for b in range(len(starts) - 1):
        own = [(ids[r], b, r) for r in range(starts[b], starts[b + 1])]
        if a["anchor_only"]:
            positions[b] += len(own)
            own = own[-1:]
        block = own and own + [(a["mask_token_id"], b, -1)] * a["num_masks"]
        lengths.append(len(block))
        rows += block
    names = ("block_token_ids", "block_batch_ids", "block_source_rows")
    padded = (rows + [(0, -1, -1)] * capacity)[:capacity]
    return {
        **{name: [row[i] for row in padded] for i, name in enumerate(names)},
        "block_cu_seqlens_q": list(accumulate(lengths, initial=0)),
        "block_seq_lens_decoder": positions[: len(lengths)],
    }


def map_draft_logits(a: Inputs) -> dict[str, Any]:
    lacking, width = FORBIDDEN[str(a["logits"].dtype)], a["own_logits"].shape[1]
    columns = a["target_to_draft"].tolist()
    return {
        "logits": [
            [row[column] if column in range(width) else lacking for column in columns]
            for row in a["own_logits"].tolist()
        ]
    }


def truncate_by_confidence(a: Inputs) -> dict[str, Any]:
    lengths = a["seq_lens_this_time"].tolist()
    for b, slt in enumerate(lengths):
        together = np.multiply.accumulate(a["draft_confidence"][b], dtype=np.float32)[: max(slt - 1, 0)]
        doubted = np.flatnonzero(together < a["min_confidence"][b])
        if a["seq_lens_encoder"][b] <= 0 and len(doubted):
            lengths[b] = int(doubted[0]) + 1
    return {"seq_lens_this_time": lengths}
