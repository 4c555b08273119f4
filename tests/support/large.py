"""Inputs with more slots, longer rows and longer histories than a kernel takes at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from specdec_hal.ops import MatchPolicy
from specdec_hal.ops.inputs.generate import generate
from specdec_hal_conformance.building import build

BIG = {
    "prepare_inputs": {"M": 130, "S": 70, "L": 900, "I_cap": 900},
    "adjust_batch": {"M": 90, "S": 9, "D": 1500, "L": 60},
    "recover_batch": {"M": 90, "S": 9, "D": 1500, "L": 60},
    "gather_next_token": {"M": 90, "S": 9, "D": 1500, "L": 60},
    "build_sampling_params": {"M": 130, "S": 40},
    "verify_draft_tokens": {"M": 70, "S": 40, "V": 200, "E": 40, "C": 50},
    "update_model_status": {"M": 130, "S": 70, "L": 300, "E": 40},
    "ngram_match": {"M": 6, "S": 40, "L": 9000},
    "hybrid_mtp_ngram": {"M": 6, "S": 40, "L": 9000},
    "ngram_index_update": {"M": 2, "L": 700},
    "ngram_index_reset": {"M": 3, "L": 4000},
    "gather_accepted": {"M": 130, "S": 70, "L": 200},
    "schedule_slots": {"M": 800, "L": 900, "I_cap": 900},
    "write_accepted": {"M": 1300, "S": 300, "L": 400},
    "gather_draft_logits": {"M": 100, "S": 6, "V": 2051, "L": 60},
    "insert_first_token": {"M": 800, "S": 70, "L": 100},
    "limit_thinking": {"M": 1300, "S": 70, "L": 200, "J": 40},
    "reasoning_constraint": {"M": 40, "S": 4, "V": 40000, "L": 60, "H": 20},
    "apply_token_bitmask": {"M": 20, "S": 4, "V": 40000, "L": 60},
    "truncate_drafts": {"M": 800, "S": 70, "V": 70, "L": 100},
    "prepare_block_inputs": {"M": 130, "S": 70, "L": 900, "I_cap": 900},
    "map_draft_logits": {"M": 20, "S": 4, "V": 40000, "V_draft": 9000, "L": 60},
    "select_draft_path": {"M": 40, "S": 9, "V": 2051, "D": 150, "C_draft": 32, "L": 60},
    "truncate_by_confidence": {"M": 800, "S": 70, "L": 100},
    "set_stop_sequences": {"M": 800, "S": 70, "L": 100, "Q": 9, "Z": 80},
}
"""Sizes by op."""


def repeated_ngrams(policy: MatchPolicy) -> Iterator[dict[str, Any]]:
    """Inputs of `ngram_match` with the text's end, or less of it, in several places of a history of 5,000 tokens."""
    length, prompt_len, rng = 5000, 3000, np.random.default_rng(0)
    for trial in range(40):
        text = rng.integers(100, 200, length)
        query = np.array([1, 2, 3, 4])
        text[-4:] = query
        for column in rng.integers(10, length - 20, 5):
            n = int(rng.integers(1, 5))
            text[column : column + n] = query[4 - n :]
        inputs = generate("ngram_match", trial, M=1, B=1, S=6, L=length, states=("decode",), index=False, pre_ids=False,
                          max_ngram_size=4, min_ngram_size=1, match_policy=policy, token_budget=100)  # fmt: skip
        inputs["token_ids_all"][0] = text
        inputs["prompt_lens"][:], inputs["step_idx"][:] = prompt_len, length - prompt_len
        inputs["max_dec_len"][:], inputs["draft_token_num"][:] = 10**6, 5
        yield inputs


def cycles(op: str, period: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs and outputs: 300 drafts go round after a text of two cycles and a half; for the hybrid op its last three
    are MTP drafts.
    """
    k, cycle, ahead = 300, np.arange(period) + 2**40, 3 if op == "hybrid_mtp_ngram" else 0
    text = np.resize(cycle, 2 * period + period // 2 + 8)
    inputs = build(
        op, {"M": 1, "B": 1, "S": k + 1, "L": len(text)}, token_ids_all=[text], prompt_lens=[2],
        step_idx=[len(text) - 2 - ahead], seq_lens_decoder=[len(text)], seq_lens_this_time=[1 + ahead],
        draft_token_num=[k], draft_tokens=[np.resize(text[len(text) - 1 - ahead :], k + 1)], max_ngram_size=3,
        max_dec_len=[10**6], token_budget=10**6, match_policy=MatchPolicy.LATEST, continue_cycles=True,
    )  # fmt: skip
    expected = {
        "seq_lens_this_time": [k + 1],
        "draft_tokens": [np.resize(cycle, len(text) + k + 1)[len(text) - 1 - ahead :][: k + 1].tolist()],
    }
    return inputs, expected
