"""Random decisions follow the distributions they stand for. Fixed seeds: these tests always draw the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_hal.ops import Strategy
from tests.support.building import build
from tests.support.running import run

REQUESTS = 10_000
# For 5 degrees of freedom: a fair sampler exceeds this once in 10,000 sets of seeds.
LIMIT = 25.7

P = np.array([[0.4, 0.05, 0.25, 0.1, 0.15, 0.05], [0.1, 0.1, 0.1, 0.1, 0.3, 0.3], [0.3, 0.2, 0.2, 0.1, 0.1, 0.1]])
Q = np.array([[0.1, 0.3, 0.3, 0.1, 0.1, 0.1], [0.05, 0.05, 0.1, 0.2, 0.3, 0.3]])


def chi_square(tokens, probs):
    expected = len(tokens) * probs
    return float((((np.bincount(tokens, minlength=len(probs)) - expected) ** 2) / expected).sum())


def verify(drafts, **given):
    m, s = drafts.shape
    inputs = build(
        "verify_draft_tokens",
        draft_tokens=drafts,
        seed=np.arange(m),
        seq_lens_this_time=[s] * m,
        seq_lens_decoder=[9] * m,
        prompt_lens=[5] * m,
        step_idx=[5] * m,
        end_tokens=np.zeros(0, np.int64),
        cu_seqlens_q_output=np.arange(m + 1, dtype=np.int32) * s,
        **given,
    )
    out = run("verify_draft_tokens", inputs)
    return out["accept_tokens"], out["accept_num"]


def test_rejection_with_a_dense_draft_distribution():
    rng = np.random.default_rng(0)
    drafts = np.stack([np.zeros(REQUESTS, np.int64), *(rng.choice(6, REQUESTS, p=q) for q in Q)], 1)
    tokens, count = verify(
        drafts,
        strategy=Strategy.REJECTION,
        target_probs=np.tile(P, (REQUESTS, 1)).astype(np.float32),
        draft_probs=np.tile(Q, (REQUESTS, 1, 1)).astype(np.float32),
    )
    for i in range(3):
        emitted = tokens[count > i, i]
        assert chi_square(emitted, P[i]) < LIMIT
    for i in range(2):
        tested = count > i
        rate = (tokens[tested, i] == drafts[tested, i + 1])[count[tested] > i + 1].sum() / tested.sum()
        expected = np.minimum(P[i], Q[i]).sum()
        assert abs(rate - expected) < 4 * np.sqrt(expected * (1 - expected) / tested.sum())


@pytest.mark.parametrize("draft", [0, 1])
def test_rejection_with_one_hot_drafts(draft):
    drafts = np.full((REQUESTS, 2), draft)
    tokens, count = verify(
        drafts, strategy=Strategy.REJECTION, target_probs=np.tile(P[:2], (REQUESTS, 1)).astype(np.float32)
    )
    assert chi_square(tokens[:, 0], P[0]) < LIMIT
    assert chi_square(tokens[count == 2, 1], P[1]) < LIMIT
    assert abs((count == 2).mean() - P[0, draft]) < 4 * np.sqrt(0.25 / REQUESTS)


def test_candidates_are_drawn_in_proportion():
    scores = np.sort(P[0])[::-1].astype(np.float32)
    tokens, _ = verify(
        np.zeros((REQUESTS, 1), np.int64),
        strategy=Strategy.TOPP,
        candidate_ids=np.tile(np.arange(6), (REQUESTS, 1)),
        candidate_scores=np.tile(scores, (REQUESTS, 1)),
        candidate_lens=np.full(REQUESTS, 6, np.int32),
        top_p=np.full(REQUESTS, 1, np.float32),
    )
    assert chi_square(tokens[:, 0], np.sort(P[0])[::-1]) < LIMIT


@pytest.mark.parametrize("vary", ["row_seed", "position"])
def test_sampling_follows_the_softmax(vary):
    inputs = build(
        "sample_target",
        logits=np.tile(np.log(P[0]) * 0.7, (REQUESTS, 1)).astype(np.float32),
        row_temperature=np.full(REQUESTS, 0.7, np.float32),
        **{"row_seed": np.full(REQUESTS, 3), "position": np.full(REQUESTS, 3), vary: np.arange(REQUESTS)},
    )
    assert chi_square(run("sample_target", inputs)["target_tokens"], P[0]) < LIMIT


def test_a_rejection_leaves_the_residual():
    """The token after a rejection does not depend on how narrow the rejection was."""
    drafts = np.full((REQUESTS, 2), 3)
    p = np.tile(P[:2], (REQUESTS, 1)).astype(np.float32)
    tokens, count = verify(drafts, strategy=Strategy.REJECTION, target_probs=p)
    rejected = tokens[count == 1, 0]
    assert 3 not in rejected
    others = np.array([0, 1, 2, 4, 5])
    assert chi_square(np.searchsorted(others, rejected), P[0, others] / P[0, others].sum()) < LIMIT
