"""Rows longer than local memory, and more slots than cores."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_hal.backends.xpu_sim.backend import XpuSimBackend
from specdec_hal.backends.xpu_sim.options import Options
from specdec_hal.conformance.building import build
from specdec_hal.conformance.inputs.generate import generate
from specdec_hal.ops import MatchPolicy
from tests.support.running import BACKEND, assert_same, run, searched

LAUNCHES = [
    Options(),
    Options(clusters=1, cores=1),
    Options(clusters=5, cores=7, seed=9, dma="deferred"),
    Options(mode="strict", dma="deferred"),
]
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
    "truncate_by_confidence": {"M": 800, "S": 70, "L": 100},
    "set_stop_sequences": {"M": 800, "S": 70, "L": 100, "Q": 9, "Z": 80},
}


@pytest.mark.parametrize("op", BIG)
def test_large(op):
    for seed in range(2):
        inputs = generate(op, seed, workspace=XpuSimBackend(LAUNCHES[0]).workspace, **BIG[op])
        expected = searched(op, inputs)
        for options in LAUNCHES:
            assert_same(run(op, inputs, XpuSimBackend(options)), expected, (seed, options))


@pytest.mark.parametrize("op", ["ngram_match", "hybrid_mtp_ngram"])
def test_padding_more_slots_than_are_granted_together(op):
    sizes = {"M": 2500, "B": 2500, "S": 4, "L": 6, "token_budget": 5000, "pad_to_max": True, "index": False}
    inputs = generate(op, 1, **sizes)
    expected = run(op, inputs)
    for options in LAUNCHES:
        assert_same(run(op, inputs, XpuSimBackend(options)), expected, options)


@pytest.mark.parametrize("strategy", ["REJECTION", "TOPP"])
def test_a_wide_vocabulary(strategy):
    """More tokens than one core's tiles, so that a draw crosses tiles and cores."""
    for seed in range(6):
        options = {"M": 3, "S": 3, "V": 5000, "C": 900} | ({} if strategy == "TOPP" else {"C": 1})
        inputs = generate("verify_draft_tokens", seed, strategy=strategy, accept_policy="NORMAL", **options)
        expected = run("verify_draft_tokens", inputs)
        for launch in LAUNCHES:
            assert_same(run("verify_draft_tokens", inputs, XpuSimBackend(launch)), expected)


@pytest.mark.parametrize("policy", MatchPolicy)
@pytest.mark.parametrize("cores", [1, 7, 64])
def test_the_same_ngram_in_several_parts_of_the_history(policy, cores):
    """The match that the policy prefers wins, whichever core finds it: longest, then leftmost or latest."""
    length, prompt_len, rng = 5000, 3000, np.random.default_rng(0)
    backend = XpuSimBackend(Options(clusters=1, cores=cores, seed=2))
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
        expected = run("ngram_match", inputs, BACKEND)
        assert expected["seq_lens_this_time"][0] > 1 or inputs["pad_to_max"]
        assert_same(run("ngram_match", inputs, backend), expected, trial)


@pytest.mark.parametrize("op", ["ngram_match", "hybrid_mtp_ngram"])
@pytest.mark.parametrize("period", [1, 2, 50, 127, 128, 129, 299, 300])
def test_cycles_longer_and_shorter_than_a_tile(op, period):
    """300 drafts go round after a text of two cycles and a half; for the hybrid op its last three are MTP drafts."""
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
    for options in LAUNCHES:
        actual = run(op, inputs, XpuSimBackend(options))
        assert actual["seq_lens_this_time"].tolist() == expected["seq_lens_this_time"], options
        assert actual["draft_tokens"].tolist() == expected["draft_tokens"], options
