"""The contract's own examples and "FD:" notes, sections 1, 2, 3 and 7, word for word."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_hal.ops import TokenOrder
from specdec_hal.ops.generate import generate
from specdec_hal.ops.spec import FLOATS
from tests.support.building import build, logits
from tests.support.exact import widen
from tests.support.running import run

INF = np.inf


def test_prepare_inputs_packs_prefill_decode_and_idle():
    inputs = build(
        "prepare_inputs",
        {"T_cap": 8, "R_cap": 6},
        input_ids=[[10, 11, 12], [0, 0, 0], [0, 0, 0], [13, 0, 0]],
        draft_tokens=[[90, 91, 92], [20, 21, 22], [90, 91, 92], [90, 91, 92]],
        seq_lens_this_time=[3, 2, 0],
        seq_lens_encoder=[3, 0, 0, 1],
        seq_lens_decoder=[4, 9, 5, 1],
    )
    out = run("prepare_inputs", inputs)
    assert out["ids_remove_padding"].tolist() == [10, 11, 12, 20, 21, 0, 0, 0]
    assert out["batch_id_per_token"].tolist() == [0, 0, 0, 1, 1, -1, -1, -1]
    assert out["cu_seqlens_q"].tolist() == [0, 3, 5, 5]
    assert out["cu_seqlens_k"].tolist() == [0, 7, 18, 18]  # slots without tokens do not enter
    assert out["cu_seqlens_q_output"].tolist() == [0, 1, 3, 3]
    assert out["batch_id_per_token_output"].tolist() == [0, 1, 1, -1, -1, -1]
    assert out["num_tokens"].tolist() == [5, 3]


def test_prepare_inputs_of_an_idle_batch_is_defined():
    inputs = build(
        "prepare_inputs", {"M": 2, "S": 2, "I_cap": 3, "T_cap": 4, "R_cap": 4, "B": 2}, seq_lens_decoder=[7, 0]
    )
    out = run("prepare_inputs", inputs)
    for name in ("ids_remove_padding", "cu_seqlens_q", "cu_seqlens_k", "cu_seqlens_q_output", "num_tokens"):
        assert not out[name].any(), name
    assert (out["batch_id_per_token"] == -1).all() and (out["batch_id_per_token_output"] == -1).all()


def test_prepare_inputs_reports_what_did_not_fit():
    inputs = build(
        "prepare_inputs",
        {"M": 2, "I_cap": 1, "T_cap": 3, "R_cap": 1},
        draft_tokens=[[1, 2], [3, 4]],
        seq_lens_this_time=[2, 2],
        seq_lens_decoder=[5, 5],
    )
    out = run("prepare_inputs", inputs)
    assert out["ids_remove_padding"].tolist() == [1, 2, 3]
    assert out["batch_id_per_token_output"].tolist() == [0]
    assert out["num_tokens"].tolist() == [4, 4] and out["cu_seqlens_q"].tolist() == [0, 2, 4]


def test_prepare_inputs_clamps_lengths_and_saturates_sums():
    largest = 2**31 - 1
    inputs = build(
        "prepare_inputs",
        {"I_cap": 1, "T_cap": 8, "R_cap": 8},
        draft_tokens=[[1, 2]] * 4,
        seq_lens_this_time=[-5, 99, 1, 1],
        seq_lens_encoder=[0, 0, 0, -1],
        seq_lens_decoder=[7, -7, largest, 3],
    )
    out = run("prepare_inputs", inputs)
    assert out["cu_seqlens_q"].tolist() == out["cu_seqlens_q_output"].tolist() == [0, 0, 2, 3, 4]
    assert out["cu_seqlens_k"].tolist() == [0, 0, 2, largest, largest]
    assert out["ids_remove_padding"].tolist() == [1, 2, 1, 1, 0, 0, 0, 0]


def rows_of(count: int) -> np.ndarray:
    return np.arange(1, count + 1, dtype=np.float32).reshape(-1, 1)


MIXED = dict(seq_lens_this_time=[2, 3, 0, 1], seq_lens_encoder=[0, 3, 0, 0], cu_seqlens_q=[0, 2, 5, 5, 6])


def test_prefill_goes_first_and_comes_back():
    there = build("adjust_batch", x=rows_of(7), **MIXED, token_order=TokenOrder.PREFILL_FIRST)
    adjusted = run("adjust_batch", there)["out"]
    assert adjusted[:, 0].tolist() == [3, 4, 5, 1, 2, 6, 0]
    back = build("recover_batch", x=adjusted, **MIXED, token_order=TokenOrder.PREFILL_FIRST)
    assert run("recover_batch", back)["out"][:, 0].tolist() == [1, 2, 3, 4, 5, 6, 0]


@pytest.mark.parametrize("order", TokenOrder)
def test_gather_next_token_packed_and_scattered(order):
    adjust = build("adjust_batch", x=rows_of(6), **MIXED, token_order=order)
    common = dict(
        x=run("adjust_batch", adjust)["out"],
        **MIXED,
        cu_seqlens_q_output=[0, 2, 3, 3, 4],
        batch_id_per_token_output=[0, 0, 1, 3, -1],
        token_order=order,
    )
    packed = run("gather_next_token", build("gather_next_token", **common, is_speculative=True))["out"]
    assert packed[:, 0].tolist() == [1, 2, 5, 6, 0]
    scattered = run("gather_next_token", build("gather_next_token", **common, is_speculative=False))["out"]
    assert scattered[:, 0].tolist() == [2, 5, 0, 6]


def test_idle_rows_are_zero_also_without_prefill():
    inputs = build(
        "gather_next_token",
        x=rows_of(1),
        seq_lens_this_time=[0, 1],
        seq_lens_encoder=[0, 0],
        cu_seqlens_q=[0, 0, 1],
        cu_seqlens_q_output=[0, 0, 1],
        batch_id_per_token_output=[1],
        is_speculative=False,
        token_order=TokenOrder.SLOT,
    )
    assert run("gather_next_token", inputs)["out"].tolist() == [[0.0], [1.0]]


def test_sampling_params_have_defined_tails():
    inputs = build(
        "build_sampling_params",
        temperature=[0.5, 0.25],
        top_p=[0.9, 0.8],
        top_k=[4, 5],
        min_p=[0.1, 0.2],
        seed=[7, -1],
        prompt_lens=[10, 20],
        step_idx=[3, 0],
        cu_seqlens_q_output=[0, 2, 3],
        batch_id_per_token_output=[0, 0, 1, -1],
    )
    out = run("build_sampling_params", inputs)
    assert out["row_temperature"].tolist() == [0.5, 0.5, 0.25, 1]
    assert out["row_top_p"].tolist() == [np.float32(0.9)] * 2 + [np.float32(0.8), 1]
    assert out["row_top_k"].tolist() == [4, 4, 5, 0]
    assert out["row_min_p"].tolist() == [np.float32(0.1)] * 2 + [np.float32(0.2), 0]
    assert out["row_seed"].tolist() == [7, 7, -1, 0]
    assert out["position"].tolist() == [13, 14, 20, -1]


PENALTIES = dict(
    token_ids_all=[[0, 1, 2, 2, 9, 9]],  # prompt 0 1, generated 2 2, then stale cells
    prompt_lens=[2],
    step_idx=[2],
    draft_tokens=[[2, 3, 4]],
    cu_seqlens_q_output=[0, 3],
    batch_id_per_token_output=[0, 0, 0],
)


def test_row_i_sees_the_drafts_before_it():
    inputs = build(
        "apply_penalties",
        {"W": 0, "E": 0},
        logits=logits([[8.0] * 10] * 3),
        **PENALTIES,
        repetition=[2],
        frequency=[0.5],
        presence=[0.25],
    )
    out = run("apply_penalties", inputs)["logits"].tolist()
    untouched = [8.0] * 5
    assert out[0] == [4, 4, 2.75, 8, 8, *untouched]  # 2 was generated twice: 8 / 2 - 2 * 0.5 - 0.25
    assert out[1] == [4, 4, 2.75, 3.25, 8, *untouched]
    assert out[2] == [4, 4, 2.75, 3.25, 3.25, *untouched]


def test_repetition_multiplies_what_is_not_positive():
    inputs = build(
        "apply_penalties",
        {"W": 0, "E": 0},
        logits=logits([[-3, 0, 3]]),
        token_ids_all=[[0, 1, 2]],
        prompt_lens=[3],
        draft_tokens=[[0]],
        cu_seqlens_q_output=[0, 1],
        batch_id_per_token_output=[0],
        repetition=[2],
    )
    assert run("apply_penalties", inputs)["logits"].tolist() == [[-6, 0, 1.5]]
    inputs["repetition"][:] = 0
    assert run("apply_penalties", inputs)["logits"].tolist() == [[0, 0, INF]]


@pytest.mark.parametrize("dtype", FLOATS)
def test_bad_tokens_and_minimum_length(dtype):
    inputs = build(
        "apply_penalties",
        logits=logits([[1.0] * 4] * 3, dtype),
        **PENALTIES | {"draft_tokens": [[2, 3, 3]]},
        bad_tokens=[[0, -1]],
        end_tokens=[2],
        min_dec_len=[4],
    )
    out = [widen(row) for row in run("apply_penalties", inputs)["logits"]]
    # Two tokens are generated; the rows would produce the 3rd, 4th and 5th. The fifth may be an end token.
    assert out == [[-INF, 1, -INF, 1], [-INF, 1, -INF, 1], [-INF, 1, 1, 1]]


def sample(rows, dtype="float32", op="sample_target", **params):
    array = logits(rows, dtype)
    count = len(array)
    params = {k: [v] * count if np.isscalar(v) else v for k, v in params.items()}
    inputs = build(op, logits=array, **{"position": list(range(count)), **params})
    return next(iter(run(op, inputs).values())).tolist()


@pytest.mark.parametrize("dtype", FLOATS)
def test_ties_go_to_the_smaller_id(dtype):
    rows = [[1, 3, 3, 2], [2, 2, 2, 2], [0, 0, 5, 5]]
    assert sample(rows, dtype, row_temperature=0) == [1, 0, 2]
    assert sample(rows, dtype, row_top_k=1) == [1, 0, 2]
    assert sample(rows, dtype, row_top_p=0) == [1, 0, 2]
    kept = sample(rows, dtype, "processed_probs", row_top_k=3)
    assert [[p > 0 for p in row] for row in kept] == [[0, 1, 1, 1], [1, 1, 1, 0], [1, 0, 1, 1]]


def test_logits_that_bfloat16_cannot_tell_apart_tie():
    rows = [[1.0, 256.0, 256.5]]
    assert sample(rows, "float32", row_temperature=0) == [2]
    assert sample(rows, "bfloat16", row_temperature=0) == [1]


def test_rows_without_a_distribution():
    rows = [[-INF, -INF], [0.0, np.nan], [0.0, -INF], [0.0, 0.0]]
    assert sample(rows, position=[0, 1, 2, -1]) == [-1, -1, 0, -1]
    assert sample(rows, row_temperature=0, position=[0, 1, 2, -1]) == [-1, -1, 0, -1]
    assert sample(rows, op="processed_probs", position=[0, 1, 2, -1]) == [[0, 0], [0, 0], [1, 0], [0, 0]]


def test_forbidden_tokens_are_never_drawn():
    rows = [[-INF, 0.0, -INF, 0.0]] * 300
    assert set(sample(rows, row_temperature=1e30)) == {1, 3}
    assert set(sample(rows, row_temperature=3e38)) == {1, 3}
    assert set(sample(rows, row_top_k=4, row_min_p=0)) == {1, 3}


def test_temperature_at_its_extremes():
    # 1 / 1e-45 overflows to inf; the largest logits alone are left, both of them.
    assert set(sample([[1.0, 1.0, 0.999]] * 200, row_temperature=1e-45)) == {0, 1}
    assert set(sample([[INF, 5.0, INF]] * 200, row_temperature=1)) == {0, 2}
    assert sample([[INF, 5.0]], op="processed_probs") == [[1, 0]]


def test_kept_set_at_its_edges():
    row = [np.log(0.5), np.log(0.25), np.log(0.125), np.log(0.125)]

    def kept(**params):
        return [p > 0 for p in sample([row], op="processed_probs", **params)[0]]

    assert kept(row_top_p=1) == kept(row_top_k=0) == kept(row_top_k=9) == [1, 1, 1, 1]
    assert kept(row_top_p=0) == kept(row_min_p=1) == kept(row_top_k=1) == [1, 0, 0, 0]
    assert kept(row_top_p=0.7) == [1, 1, 0, 0]
    assert kept(row_top_p=0.8) == [1, 1, 1, 0]
    assert kept(row_top_k=2, row_top_p=0.6) == [1, 0, 0, 0]  # of the kept total, 3/4, the first has 2/3
    assert kept(row_min_p=0.4) == [1, 1, 0, 0]
    # The first reaches half of the total exactly: "reaches" includes equality.
    assert [p > 0 for p in sample([[2.0, 2.0]], op="processed_probs", row_top_p=0.5)[0]] == [1, 0]


def candidates(probs, top_p, c):
    inputs = build("top_p_candidates", {"C": c}, probs=probs, top_p=[top_p], batch_id_per_token_output=[0] * len(probs))
    out = run("top_p_candidates", inputs)
    return [out[f"candidate_{n}"].tolist() for n in ("scores", "ids", "lens")]


def test_candidates_reach_top_p_inclusively():
    probs = [[0.25, 0.5, 0.125, 0.125]]
    assert candidates(probs, 0.75, 4) == [[[0.5, 0.25, 0.125, 0.125]], [[1, 0, 2, 3]], [2]]
    assert candidates(probs, 0.5, 4)[2] == [1]  # not counted twice
    assert candidates(probs, 0.5000001, 4)[2] == [2]
    assert candidates(probs, 0.0, 4)[2] == [1]
    assert candidates(probs, 1.0, 4)[2] == [4]


def test_candidates_that_do_not_reach_top_p_are_all_valid():
    assert candidates([[0.25, 0.5, 0.125, 0.125]], 0.9, 2) == [[[0.5, 0.25]], [[1, 0]], [2]]
    assert candidates([[0.0, 0.0, 0.0]], 0.5, 2) == [[[0, 0]], [[0, 1]], [2]]


def test_candidate_tails_are_defined():
    inputs = build("top_p_candidates", {"C": 2}, probs=[[0.5, 0.5]], top_p=[0.5], batch_id_per_token_output=[-1])
    out = run("top_p_candidates", inputs)
    assert [out[f"candidate_{n}"].tolist() for n in ("scores", "ids", "lens")] == [[[0, 0]], [[-1, -1]], [0]]


def test_stale_counts_do_not_enter():
    inputs = build(
        "gather_accepted",
        {"A_cap": 5},
        logits=logits(np.zeros((6, 2))),
        accept_tokens=[[5, 6], [7, 8], [9, -1]],
        accept_num=[2, 2, 1],
        cu_seqlens_q_output=[0, 2, 2, 3],
        seq_lens_encoder=[0, 0, 4],
        seq_lens_this_time=[2, 0, 4],
    )
    out = run("gather_accepted", inputs)
    assert out["cu_batch_token_offset"].tolist() == [0, 2, 2, 3]
    assert out["token_ids"].tolist() == [5, 6, 9, -1, -1]
    assert out["rows"].tolist() == [0, 1, 2, -1, -1]


def test_a_prefill_slot_has_one_row():
    inputs = build(
        "gather_accepted",
        {"A_cap": 2},
        logits=logits(np.zeros((3, 2))),
        accept_tokens=[[5, 6]],
        accept_num=[2],
        cu_seqlens_q_output=[0, 1],
        seq_lens_encoder=[4],
        seq_lens_this_time=[4],
    )
    assert run("gather_accepted", inputs)["rows"].tolist() == [0, 0]


def test_logprobs_by_hand():
    inputs = build(
        "token_logprobs",
        {"N": 3},
        logits=logits([[0.0, np.log(2.0), -INF, np.log(2.0)], [np.nan, 0, 0, 0]]),
        rows=[0, 0, 1, 0, 5],
        token_ids=[0, 2, 1, 4, 0],
        cu_batch_token_offset=[0, 5],
    )
    out = run("token_logprobs", inputs)
    lowest = float(np.finfo(np.float32).min)
    fifths = np.log([0.2, 0.4, 0.4])
    np.testing.assert_allclose(out["logprobs"][0], fifths, rtol=1e-6)
    assert out["logprobs"][1, 0] == lowest  # -inf is clipped
    assert out["logprobs"][2].tolist() == [lowest] * 3  # NaN: no distribution
    assert not out["logprobs"][3:].any()  # a token and a row out of range
    assert out["ids"].tolist() == [[0, 1, 3], [2, 1, 3], [1, -1, -1], [-1] * 3, [-1] * 3]
    assert out["ranks"].tolist() == [3, 4, -1, -1, -1]


def test_logprobs_of_one_column_and_of_nothing():
    inputs = build(
        "token_logprobs", {"N": 1}, logits=logits([[0.0, 0.0]]), rows=[0, 0], token_ids=[1, 1],
        cu_batch_token_offset=[0, 1],
    )  # fmt: skip
    out = run("token_logprobs", inputs)
    assert out["ids"].tolist() == [[1], [-1]] and out["ranks"].tolist() == [2, -1]
    np.testing.assert_allclose(out["logprobs"], [[np.log(0.5)], [0]], rtol=1e-6)
    nothing = run("token_logprobs", generate("token_logprobs", 1, B=0))
    assert (nothing["ids"] == -1).all() and not nothing["logprobs"].any() and (nothing["ranks"] == -1).all()
