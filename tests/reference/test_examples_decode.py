"""The contract's own examples and "FD:" notes, sections 4, 5 and 6, word for word."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_hal.ops import AcceptPolicy, MatchPolicy, Strategy
from tests.support.building import build
from tests.support.running import run

LEFTMOST, LATEST = MatchPolicy.LEFTMOST, MatchPolicy.LATEST


def verify(drafts, *, strategy=Strategy.TARGET_MATCH, **given):
    """Slots that decode, all drafts of each to be verified; returns the emitted tokens per slot."""
    drafts = np.array(drafts)
    m, s = drafts.shape
    state = {
        "seq_lens_this_time": [s] * m,
        "seq_lens_decoder": [10] * m,
        "prompt_lens": [5] * m,
        "step_idx": [6] * m,
        "end_tokens": np.zeros(0, np.int64),
        "cu_seqlens_q_output": [i * s for i in range(m + 1)],
    }
    inputs = build("verify_draft_tokens", draft_tokens=drafts, strategy=strategy, **{**state, **given})
    out = run("verify_draft_tokens", inputs)
    for row, count in zip(out["accept_tokens"], out["accept_num"], strict=True):
        assert (row[count:] == -1).all()  # every row is written, all M of them
        assert count == s or -1 not in row[:count]
    return [row[:count].tolist() for row, count in zip(out["accept_tokens"], out["accept_num"], strict=True)]


def test_a_prefix_and_one_more():
    rows = [[1, 2, 9, 4], [8, 8, 8, 8], [1, 2, 3, 4]]
    assert verify([[0, 1, 2, 3]] * 3, target_tokens=np.ravel(rows)) == [[1, 2, 9], [8], [1, 2, 3, 4]]


def test_a_running_slot_without_tokens_emits_nothing():
    out = verify(
        [[0, 1], [0, 1], [0, 1]],
        target_tokens=[1, 2, 1, 2],
        seq_lens_this_time=[2, 0, 2],
        cu_seqlens_q_output=[0, 2, 2, 4],
    )
    assert out == [[1, 2], [], [1, 2]]


def test_padding_paused_and_stopped_slots_emit_nothing():
    out = verify(
        [[0, 1]] * 4,
        target_tokens=[1, 2] * 3,
        seq_lens_this_time=[2, 2, 2],
        cu_seqlens_q_output=[0, 2, 4, 6],
        stop_flags=[True, False, False, False],
        is_block_step=[False, True, False, False],
    )
    assert out == [[], [], [1, 2], []]


def test_only_the_last_chunk_of_a_prompt_emits_and_it_verifies_nothing():
    out = verify(
        [[0, 5, 5]] * 3,
        target_tokens=[5, 6, 7],
        seq_lens_this_time=[2, 2, 3],
        seq_lens_encoder=[2, 2, 3],
        seq_lens_decoder=[0, 3, 2],
        prompt_lens=[5, 5, 5],
        step_idx=[0, 0, 0],
        cu_seqlens_q_output=[0, 1, 2, 3],
    )
    assert out == [[], [6], [7]]


@pytest.mark.parametrize("position", [1, 2])
def test_accept_num_is_exact_at_an_end_token(position):
    drafts = [0, 1, 2, 3]
    assert verify([drafts], target_tokens=[1, 2, 3, 4], end_tokens=[position]) == [drafts[1 : position + 1]]


@pytest.mark.parametrize("left", [1, 2, 3, 4, 5])
def test_accept_num_is_exact_at_the_limit(left):
    assert verify([[0, 1, 2, 3]], target_tokens=[1, 2, 3, 4], max_dec_len=[6 + left]) == [[1, 2, 3, 4][:left]]


def test_the_token_at_the_limit_can_be_replaced_by_an_end_token():
    common = dict(target_tokens=[1, 2, 3, 4], max_dec_len=[8])
    assert verify([[0, 1, 2, 3]], **common, end_tokens=[50, 51], end_at_limit=True) == [[1, 50]]
    assert verify([[0, 1, 2, 3]], **common, end_tokens=[50, 2], end_at_limit=True) == [[1, 2]]
    assert verify([[0, 1, 2, 3]], **common, end_at_limit=True) == [[1, 2]]  # there is no end token
    assert verify([[0, 1, 2, 3]], **common, end_tokens=[50], end_at_limit=False) == [[1, 2]]
    # The token of phase 2 obeys the same rule.
    assert verify([[0, 7, 2, 3]], target_tokens=[1, 2, 3, 4], max_dec_len=[7], end_tokens=[50], end_at_limit=True) == [
        [50]
    ]


def test_accept_policies():
    common = dict(target_tokens=[8, 8, 9], end_tokens=[1, 9])
    assert verify([[0, 1, 2]], **common) == [[8]]
    assert verify([[0, 1, 2]], **common, accept_policy=AcceptPolicy.ACCEPT_ALL) == [[1, 2, 9]]
    assert verify([[0, 8, 8]], **common, accept_policy=AcceptPolicy.REJECT_ALL) == [[8]]
    assert verify([[0, 1, 2]], **common, accept_policy=AcceptPolicy.ACCEPT_ALL, max_dec_len=[8]) == [[1, 2]]


def test_a_forced_reasoning_marker_stops_acceptance():
    assert verify([[0, 1, 2]] * 2, target_tokens=[1, 2, 3] * 2, reasoning_status=[1, 2]) == [[1], [1, 2, 3]]


TOPP = dict(strategy=Strategy.TOPP, candidate_scores=[[0.5, 0.25]] * 5, top_p=[1.0])


def topp(drafts, ids, lens, **given):
    return verify([drafts], **TOPP, candidate_ids=ids, candidate_lens=lens, **given)[0]


def test_topp_accepts_any_of_the_first_candidates():
    ids = [[1, 2], [3, 4], [5, 6], [7, 8], [9, 9]]
    assert topp([0, 2, 3, 6, 8], ids, [2, 1, 2, 2, 2])[:4] == [2, 3, 6, 8]
    assert len(topp([0, 2, 4, 6, 8], ids, [2, 1, 2, 2, 2])) == 2  # 4 is second, and only one counts


def test_topp_window_is_kept_whole_and_verification_resumes_behind_it():
    ids = [[1, 2], [3, 4], [5, 6], [7, 8], [9, 9]]
    lens = [1, 1, 1, 1, 1]
    # 2 is second best at 0; 3 and 5 are best: a window of two. Position 3 is verified like any other.
    assert topp([0, 2, 3, 5, 7], ids, lens) == [2, 3, 5, 7, 9]
    assert topp([0, 2, 3, 5, 0], ids, lens) == [2, 3, 5, 7]  # 0 is rejected there, not skipped
    assert topp([0, 2, 3, 6, 7], ids, lens)[0] == 1  # 6 breaks the window: 2 is rejected
    assert topp([0, 2, 3, 8, 7], ids, lens, verify_window=1) == [2, 3, 5]
    assert topp([0, 1, 3, 6, 7], ids, lens) == [1, 3, 5]  # the window would reach past the last draft
    assert topp([0, 2, 3, 5, 7], ids, lens, end_tokens=[3]) == [2, 3]  # an end token inside the window


def test_topp_draws_in_candidate_order_up_to_top_p():
    drawn = {0.25: set(), 0.75: set(), 1.0: set()}
    for top_p, seen in drawn.items():
        for seed in range(200):
            ids, scores = [[4, 3, 2, 1]], [[0.25, 0.25, 0.25, 0.25]]
            seen.update(
                verify([[0]], strategy=Strategy.TOPP, candidate_ids=ids, candidate_scores=scores, candidate_lens=[4],
                       top_p=[top_p], seed=[seed])[0]
            )  # fmt: skip
    assert drawn == {0.25: {4}, 0.75: {4, 3, 2}, 1.0: {4, 3, 2, 1}}


def test_a_draw_is_the_first_mass_beyond_its_point():
    """With masses of one unit each, points fall on their borders; what has no mass is never drawn."""
    drawn = []
    for seed in range(200):
        scores = [[0.0, 2.0**-40, 0.0, 2.0**-40]]
        drawn += verify(
            [[0]], strategy=Strategy.TOPP, candidate_ids=[[4, 3, 2, 1]], candidate_scores=scores, candidate_lens=[4],
            top_p=[1.0], seed=[seed],
        )[0]  # fmt: skip
    assert set(drawn) == {3, 1} and 70 < drawn.count(3) < 130


def rejection(drafts, p, q=None, **given):
    dense = {} if q is None else {"draft_probs": q}
    return verify(drafts, strategy=Strategy.REJECTION, target_probs=p, **dense, **given)


def test_rejection_never_takes_the_impossible_nor_refuses_the_equal():
    p = [[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
    for seed in range(200):
        token, *_ = rejection([[0, 2]], p, seed=[seed])[0]
        assert token in (0, 1)
        assert rejection([[0, 1]], p, [[p[0]]], seed=[seed]) == [[1, 2]]


def test_an_empty_residual_gives_the_most_likely_token():
    # p never exceeds q, and the draft is impossible under p: the residual is empty.
    p, q = [[0.25, 0.375, 0.0], [0, 0, 1.0]], [[[0.5, 0.5, 1.0]]]
    assert rejection([[0, 2]], p, q) == [[1]]
    assert rejection([[0, 1]], [[0.0, 0.0], [1.0, 0.0]]) == [[0]]  # no distribution at all
    assert rejection([[0, -1]], [[0.0, 1.0], [1.0, 0.0]]) == [[1]]  # a draft that is no token


def update(sizes=None, **given):
    return run("update_model_status", build("update_model_status", sizes, **given))


def test_history_is_written_as_far_as_it_fits():
    out = update(
        seq_lens_this_time=[3, 3, 3],
        seq_lens_decoder=[2, 2, 2],
        prompt_lens=[1, 1, 4],
        step_idx=[1, 2, 3],
        token_ids_all=[[0, 1, -1, -1], [0, 1, 2, -1], [0, 1, 2, 3]],
        accept_tokens=[[4, 5, 6]] * 3,
        accept_num=[2, 3, 3],
        draft_tokens=[[1, 0, 0]] * 3,
        end_tokens=[9],
    )
    assert out["token_ids_all"].tolist() == [[0, 1, 4, 5], [0, 1, 2, 4], [0, 1, 2, 3]]
    assert out["step_idx"].tolist() == [3, 5, 6]
    assert out["draft_tokens"][:, 0].tolist() == [5, 6, 6]
    assert out["seq_lens_decoder"].tolist() == [4, 5, 5]


def test_slots_stop_at_an_end_token_and_at_the_limit():
    out = update(
        {"L": 9},
        seq_lens_this_time=[1, 1, 1],
        seq_lens_decoder=[3, 3, 3],
        step_idx=[1, 1, 1],
        accept_tokens=[[9], [5], [5]],
        accept_num=[1, 1, 1],
        max_dec_len=[100, 2, 3],
        end_tokens=[9],
    )
    assert out["stop_flags"].tolist() == [True, True, False]
    assert out["has_running"].tolist() == [True]


def test_a_padding_slot_is_untouched_and_does_not_run():
    inputs = build(
        "update_model_status",
        {"L": 4, "S": 2, "E": 0},
        seq_lens_this_time=[1],
        seq_lens_decoder=[3, 3],
        seq_lens_encoder=[0, 2],
        stop_flags=[True, False],
        step_idx=[1, 1],
        accept_num=[1, 2],
        accept_tokens=[[5, -1], [5, 6]],
    )
    out = run("update_model_status", inputs)
    assert out["has_running"].tolist() == [False]
    for name, array in out.items():
        if name not in ("has_running", "seq_lens_this_time"):
            np.testing.assert_array_equal(array[1], inputs[name][1], name)
    for name in ("seq_lens_encoder", "seq_lens_decoder", "seq_lens_this_time", "accept_num"):
        assert out[name][0] == 0


def test_a_paused_slot_is_stopped_and_cleared():
    out = update(
        {"L": 4, "S": 1, "E": 0},
        seq_lens_this_time=[1],
        seq_lens_decoder=[3],
        is_block_step=[True],
        step_idx=[1],
        accept_num=[1],
    )
    assert out["stop_flags"].tolist() == [True] and out["step_idx"].tolist() == [1]
    assert not out["seq_lens_decoder"].any() and not out["seq_lens_this_time"].any() and not out["accept_num"].any()


def test_a_chunk_that_emitted_nothing_still_advances():
    out = update(
        {"L": 9, "S": 2, "E": 0},
        seq_lens_this_time=[4],
        seq_lens_encoder=[4],
        seq_lens_decoder=[2],
        prompt_lens=[8],
        draft_tokens=[[77, 78]],
    )
    assert (out["seq_lens_encoder"][0], out["seq_lens_decoder"][0]) == (0, 6)
    assert out["draft_tokens"].tolist() == [[77, 78]] and not out["stop_flags"][0]


def propose(text, prompt_len, *, op="ngram_match", k=5, **given):
    """One decoding slot; returns its drafts."""
    text = list(text)
    base = given.pop("mtp", [])
    drafts = [[text[-1], *base, *[-7] * (k - len(base))]]
    attrs = {"max_ngram_size": 3, "token_budget": 10**9, "match_policy": LATEST}
    inputs = build(
        op,
        token_ids_all=[text + given.pop("stale", [])],
        prompt_lens=[prompt_len],
        step_idx=[len(text) - prompt_len],
        draft_token_num=[k],
        seq_lens_decoder=[len(text) - 1],
        draft_tokens=drafts,
        seq_lens_this_time=[1 + len(base)],
        **{**attrs, **given},
    )
    out = run(op, inputs)
    slt = int(out["seq_lens_this_time"][0])
    if not inputs["pad_to_max"]:
        assert (out["draft_tokens"][0, slt:] == inputs["draft_tokens"][0, slt:]).all() or "token_budget" in given
    return out["draft_tokens"][0, 1:slt].tolist()


def test_leftmost_continues_inside_one_haystack():
    # prompt 1 2 3 | generated 4 1 2 5 1 2
    text = [1, 2, 3, 4, 1, 2, 5, 1, 2]
    assert propose(text, 3, match_policy=LEFTMOST, max_ngram_size=2) == [3]  # ends with the prompt
    assert propose(text, 3, match_policy=LATEST, max_ngram_size=2) == [5, 1, 2]


def test_a_match_that_touches_the_end_of_the_prompt():
    # 8 9 ends the prompt: nothing follows it there; as one text, generated tokens do.
    text = [1, 8, 9, 5, 6, 8, 9]
    assert propose(text, 3, match_policy=LEFTMOST, max_ngram_size=2, min_ngram_size=2) == []
    assert propose(text, 3, match_policy=LATEST, max_ngram_size=2, min_ngram_size=2) == [5, 6, 8, 9]


def test_a_match_across_the_end_of_the_prompt_is_only_for_one_text():
    text = [1, 8, 9, 5, 8, 9]  # 8 | 9 straddles
    assert propose(text, 2, match_policy=LATEST, max_ngram_size=2, min_ngram_size=2) == [5, 8, 9]
    assert propose(text, 2, match_policy=LEFTMOST, max_ngram_size=2, min_ngram_size=2) == []


@pytest.mark.parametrize("policy", MatchPolicy)
def test_the_cell_behind_the_text_is_never_read(policy):
    # If step_idx were an index, the query would be 2 3 with the stale 3, and match the prompt.
    assert propose([2, 3, 4, 9, 2], 3, stale=[3], match_policy=policy, max_ngram_size=2, min_ngram_size=2) == []
    # The text's own end is followed by nothing, whatever the next cell holds.
    assert propose([7, 8, 5, 6], 2, stale=[9, 5, 6], match_policy=policy) == []


@pytest.mark.parametrize("policy", MatchPolicy)
def test_longer_queries_come_first(policy):
    text = [3, 1, 4, 2, 3, 5, 6, 2, 3]  # after "2 3": 5; after the first "3" alone: 1
    assert propose(text, 7, match_policy=policy, max_ngram_size=2)[0] == 5
    assert propose(text, 7, match_policy=policy, max_ngram_size=1)[0] == (1 if policy is LEFTMOST else 5)


def test_the_query_lies_in_the_generated_part():
    text = [1, 2, 5, 1, 2]  # one token generated: a query of two would need the prompt's last
    assert propose(text, 4, min_ngram_size=2) == []
    assert propose(text, 4) == [5, 1, 2]


def test_all_tokens_equal():
    assert propose([4] * 6, 3, match_policy=LATEST) == [4]  # the rightmost place leaves one token
    assert propose([4] * 6, 3, match_policy=LEFTMOST, max_ngram_size=1) == [4, 4]


def test_limits_on_the_number_of_drafts():
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1]
    assert propose(text, 8) == [2, 3, 4, 5, 6]
    assert propose(text, 8, max_dec_len=[4]) == [2, 3]  # the base token's successor takes the last place
    assert propose(text, 8, max_dec_len=[2]) == [] == propose(text, 8, max_dec_len=[1])


BUDGET = dict(
    token_ids_all=[[1, 2, 3, 4, 5, 6, 7, 8, 1]] * 3,
    prompt_lens=[8] * 3,
    step_idx=[1] * 3,
    draft_token_num=[5] * 3,
    draft_tokens=[[1, 0, 0, 0, 0, 0]] * 3,
    max_ngram_size=1,
    match_policy=LEFTMOST,
)


def granted(budget, enc=(0, 0, 0), dec=(8, 8, 8), slt=(1, 1, 1), **given):
    inputs = build(
        "ngram_match",
        **BUDGET,
        token_budget=budget,
        seq_lens_encoder=list(enc),
        seq_lens_decoder=list(dec),
        seq_lens_this_time=list(slt),
        **given,
    )
    return run("ngram_match", inputs)["seq_lens_this_time"].tolist()


def test_budget_of_nine_for_three_slots_with_five_drafts():
    assert granted(9) == [6, 2, 1]


@pytest.mark.parametrize(
    "budget, expected",
    [(0, [1, 1, 1]), (3, [1, 1, 1]), (4, [2, 1, 1]), (8, [6, 1, 1]), (17, [6, 6, 5]), (18, [6, 6, 6])],
)
def test_budget_keeps_every_base_token(budget, expected):
    assert granted(budget) == expected


def test_budget_counts_prefill_chunks_and_spares_later_slots():
    assert granted(12, enc=(4, 0, 0), slt=(4, 1, 1)) == [4, 6, 2]
    assert granted(12, enc=(0, 0, 4), slt=(1, 1, 4)) == [6, 5, 4]  # a later chunk counts as one slot
    assert granted(9, dec=(8, 0, 8), slt=(1, 5, 1)) == [6, 0, 3]  # an idle slot neither uses nor reserves


def test_static_shapes():
    assert granted(9, pad_to_max=True) == [6, 6, 6]
    assert propose([1, 2, 3, 1], 3, max_ngram_size=1, pad_to_max=True) == [2, 3, 1, 1, 1]
    assert propose([1, 2, 3, 4], 3, pad_to_max=True) == [4] * 5  # no match: the base token
    assert propose([1, 2, 3, 1], 3, pad_to_max=True, max_dec_len=[1]) == [1] * 5  # whatever the limit


def test_hybrid_appends_to_mtp_drafts():
    text = [1, 2, 3, 4, 5, 9, 1]
    hybrid = dict(op="hybrid_mtp_ngram", max_ngram_size=3)
    assert propose(text, 6, mtp=[2, 3], **hybrid) == [2, 3, 4, 5, 9]
    assert propose(text, 6, mtp=[2, 8], **hybrid) == [2, 8]  # ends with 8: nothing like it
    assert propose(text, 6, mtp=[2, 3], **hybrid, token_budget=0) == [2, 3]  # MTP drafts are never taken away
    assert propose(text, 6, mtp=[2, 3], **hybrid, max_dec_len=[5]) == [2, 3, 4]
    assert propose(text, 6, mtp=[2, 2], **hybrid, match_policy=LATEST, min_ngram_size=1) == [2, 2, 2]  # its own drafts
