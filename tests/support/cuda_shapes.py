"""Sizes at which the CUDA kernels take several warps, blocks and clusters."""

from __future__ import annotations

from typing import Any

from specdec_hal.ops import OPS

LARGE = {
    "prepare_inputs": {"M": 1300, "S": 9, "L": 900, "I_cap": 300},
    "adjust_batch": {"M": 90, "S": 9, "D": 1537, "L": 60},
    "recover_batch": {"M": 900, "S": 2, "D": 4096, "L": 2},
    "gather_next_token": {"M": 600, "S": 2, "D": 2048, "L": 2, "token_order": "SLOT"},
    "build_sampling_params": {"M": 1300, "S": 32},
    "verify_draft_tokens": {"M": 1100, "S": 32, "V": 70, "E": 12, "C": 50},
    "update_model_status": {"M": 1300, "S": 32, "L": 300, "E": 40},
    "ngram_match": {"M": 40, "S": 32, "L": 9001},
    "hybrid_mtp_ngram": {"M": 40, "S": 32, "L": 9001},
    "gather_accepted": {"M": 1300, "S": 32, "L": 200},
    "schedule_slots": {"M": 90, "L": 3000, "I_cap": 2900},
    "set_stop_sequences": {"M": 300, "S": 32, "L": 300, "Q": 20, "Z": 40},
    "write_accepted": {"M": 1300, "S": 32, "L": 200},
    "clear_accept_num": {"M": 1300},
    "gather_draft_logits": {"M": 300, "S": 6, "V": 2051, "L": 60},
    "insert_first_token": {"M": 1300, "S": 32, "L": 60},
    "limit_thinking": {"M": 1300, "S": 32, "L": 200, "J": 20},
    "reasoning_constraint": {"M": 300, "S": 4, "V": 2051, "L": 60, "H": 20},
    "apply_token_bitmask": {"M": 60, "S": 4, "V": 9001, "L": 60},
    "truncate_drafts": {"M": 1300, "S": 32, "V": 70, "L": 200},
    "prepare_block_inputs": {"M": 1300, "S": 9, "L": 900, "I_cap": 300},
    "map_draft_logits": {"M": 60, "S": 4, "V": 9001, "V_draft": 2000, "L": 60},
    "select_draft_path": {"M": 300, "S": 20, "V": 2051, "D": 300, "C_draft": 32, "L": 60},
    "truncate_by_confidence": {"M": 1300, "S": 32, "L": 200},
    "draft_model_preprocess": {"M": 1300, "S": 32, "L": 300, "I_cap": 40},
    "draft_model_update": {"M": 1300, "S": 32, "L": 300},
    "draft_model_postprocess": {"M": 1300, "S": 32, "L": 300},
    "eagle_get_hidden_states": {"M": 90, "S": 9, "D": 1537, "L": 60},
    "eagle_gather_hidden_states": {"M": 300, "S": 3, "D": 1537, "L": 60},
    "eagle_get_self_hidden_states": {"M": 300, "S": 3, "D": 1537, "L": 60},
}


INDEX_OPS = ("ngram_index_update", "ngram_index_reset")


def without_index(op: str) -> dict[str, Any]:
    return {"index": False} if any(o.optional and o.name == "index" for o in OPS[op].operands) else {}
