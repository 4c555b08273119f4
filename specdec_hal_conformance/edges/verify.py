"""Section 4 without random numbers: which drafts pass, where a slot stops, what it emits then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from specdec_hal.ops import AcceptPolicy, Strategy
from specdec_hal_conformance.case import Case
from specdec_hal_conformance.edges.edge import edge

OP = "verify_draft_tokens"


def slots(drafts: Any, strategy: Strategy, given: dict[str, Any]) -> dict[str, Any]:
    """Slots that decode, with all drafts of each to be verified, unless `given` says otherwise."""
    array = np.array(drafts)
    m, s = array.shape
    return {
        "seq_lens_this_time": [s] * m,
        "seq_lens_decoder": [10] * m,
        "prompt_lens": [5] * m,
        "step_idx": [6] * m,
        "end_tokens": np.zeros(0, np.int64),
        "cu_seqlens_q_output": [i * s for i in range(m + 1)],
        "draft_tokens": array,
        "strategy": strategy,
        **given,
    }


def emits(name: str, rules: str, drafts: Any, tokens: list[list[int]], strategy: Any = None, **given: Any) -> Case:
    """`tokens`: what each of the M slots emits."""
    s = len(drafts[0])
    expected = {
        "accept_tokens": [row + [-1] * (s - len(row)) for row in tokens],
        "accept_num": [len(row) for row in tokens],
    }
    arguments = slots(drafts, Strategy.TARGET_MATCH if strategy is None else strategy, given)
    return edge(OP, name, rules, expected, **arguments)


def edges() -> Iterator[Case]:
    """verify_draft_tokens."""
    yield from _by_token()
    yield from _stops()
    yield from _silent()
    yield from _topp()
    yield from _rejection()


def _by_token() -> Iterator[Case]:
    for strategy in (Strategy.GREEDY, Strategy.TARGET_MATCH):
        yield emits(
            f"a prefix and one more, {strategy.name}", "by-token one-more exact", [[0, 1, 2, 3]] * 3,
            [[1, 2, 9], [8], [1, 2, 3, 4]], strategy, target_tokens=[1, 2, 9, 4, 8, 8, 8, 8, 1, 2, 3, 4],
        )  # fmt: skip
        yield emits(f"plain decoding, {strategy.name}", "plain", [[0], [0]], [[7], [8]], strategy, target_tokens=[7, 8])
    yield emits(
        "rows beyond the logits are clamped", "row-clamp", [[0, 5, 6]], [[5, 5]], target_tokens=[9, 5],
        cu_seqlens_q_output=[1, 99],
    )  # fmt: skip
    yield emits(
        "a negative row is clamped", "row-clamp", [[0, 9]], [[9, 9]], target_tokens=[9, 5], cu_seqlens_q_output=[-7, 0]
    )
    yield emits(
        "more tokens than a row holds", "exact", [[0, 1]], [[1, 2]], target_tokens=[1, 2, 3],
        seq_lens_this_time=[9], cu_seqlens_q_output=[0, 9],
    )  # fmt: skip
    yield emits(
        "a forced reasoning marker", "reasoning", [[0, 1, 2]] * 2, [[1], [1, 2, 3]], target_tokens=[1, 2, 3] * 2,
        reasoning_status=[1, 2],
    )  # fmt: skip
    common: dict[str, Any] = {"target_tokens": [8, 8, 9], "end_tokens": [1, 9]}
    yield emits("policy normal", "by-token", [[0, 1, 2]], [[8]], **common)
    accept, reject = {"accept_policy": AcceptPolicy.ACCEPT_ALL}, {"accept_policy": AcceptPolicy.REJECT_ALL}
    yield emits("policy accept all", "accept-all", [[0, 1, 2]], [[1, 2, 9]], **common, **accept)
    yield emits(
        "policy accept all at the limit", "accept-all limit", [[0, 1, 2]], [[1, 2]], **common, **accept, max_dec_len=[8]
    )
    yield emits("policy reject all", "reject-all", [[0, 8, 8]], [[8]], **common, **reject)


def _stops() -> Iterator[Case]:
    drafts, targets = [[0, 1, 2, 3]], [1, 2, 3, 4]
    for draft in (1, 2, 3):
        yield emits(
            f"an end token as draft {draft}", "end-token exact", drafts, [[1, 2, 3][:draft]], target_tokens=targets,
            end_tokens=[77, draft],
        )  # fmt: skip
    yield emits(
        "an end token as the last one", "end-token exact", drafts, [targets], target_tokens=targets, end_tokens=[4]
    )
    for left in (1, 2, 3, 4, 5):
        yield emits(
            f"{left} tokens left",
            "limit exact",
            drafts,
            [targets[:left]],
            target_tokens=targets,
            max_dec_len=[6 + left],
        )
    yield emits("no token left", "past-limit", drafts, [[1]], target_tokens=targets, max_dec_len=[6])
    yield emits("far past the limit", "past-limit", drafts, [[1]], target_tokens=targets, max_dec_len=[-(2**63)])
    common: dict[str, Any] = {"target_tokens": targets, "max_dec_len": [8]}
    for name, wanted, given in (
        ("the token at the limit is replaced", [1, 50], {"end_tokens": [50, 51], "end_at_limit": True}),
        ("an end token at the limit stays", [1, 2], {"end_tokens": [50, 2], "end_at_limit": True}),
        ("no end token to replace by", [1, 2], {"end_at_limit": True}),
        ("the token at the limit is kept", [1, 2], {"end_tokens": [50], "end_at_limit": False}),
    ):
        yield emits(name, "end-at-limit", drafts, [wanted], **common, **given)
    yield emits(
        "a slot that ignores end tokens", "ignore-end end-token", drafts * 2, [targets, [1, 2]],
        target_tokens=targets * 2, end_tokens=[2, 4], ignore_end=[True, False],
    )  # fmt: skip
    yield emits(
        "nothing to replace by where end tokens are ignored", "ignore-end end-at-limit limit", drafts * 2,
        [[1, 2], [1, 50]], target_tokens=targets * 2, max_dec_len=[8, 8], end_tokens=[50], end_at_limit=True,
        ignore_end=[True, False],
    )  # fmt: skip
    yield emits(
        "phase 2 obeys the limit too", "end-at-limit limit", [[0, 7, 2, 3]], [[50]], target_tokens=targets,
        max_dec_len=[7], end_tokens=[50], end_at_limit=True,
    )  # fmt: skip
    yield emits(
        "accept all at the limit ends", "end-at-limit accept-all", drafts, [[1, 50]], target_tokens=targets,
        max_dec_len=[8], end_tokens=[50], end_at_limit=True, accept_policy=AcceptPolicy.ACCEPT_ALL,
    )  # fmt: skip


def _silent() -> Iterator[Case]:
    yield emits(
        "a running slot without tokens", "no-tokens cleared", [[0, 1]] * 3, [[1, 2], [], [1, 2]],
        target_tokens=[1, 2, 1, 2], seq_lens_this_time=[2, 0, 2], cu_seqlens_q_output=[0, 2, 2, 4],
    )  # fmt: skip
    yield emits(
        "a negative number of tokens", "no-tokens", [[0, 1]] * 2, [[], [1, 2]], target_tokens=[1, 2],
        seq_lens_this_time=[-3, 2], cu_seqlens_q_output=[0, 0, 2],
    )  # fmt: skip
    yield emits(
        "padding, paused and stopped slots", "silent cleared", [[0, 1]] * 4, [[], [], [1, 2], []],
        target_tokens=[1, 2] * 3, seq_lens_this_time=[2, 2, 2], cu_seqlens_q_output=[0, 2, 4, 6],
        stop_flags=[True, False, False, False], is_block_step=[False, True, False, False],
    )  # fmt: skip
    yield emits(
        "the last chunk alone emits and verifies nothing", "unfinished-chunk prefill", [[0, 5, 5]] * 3, [[], [6], [7]],
        target_tokens=[5, 6, 7], seq_lens_this_time=[2, 2, 3], seq_lens_encoder=[2, 2, 3], seq_lens_decoder=[0, 3, 2],
        prompt_lens=[5, 5, 5], step_idx=[0, 0, 0], cu_seqlens_q_output=[0, 1, 2, 3],
    )  # fmt: skip
    yield emits(
        "a chunk's drafts are never accepted", "prefill", [[0, 6, 6]], [[6]], target_tokens=[6, 6, 6],
        seq_lens_this_time=[3], seq_lens_encoder=[3], seq_lens_decoder=[2], step_idx=[0], cu_seqlens_q_output=[0, 1],
    )  # fmt: skip


IDS = [[1, 2], [3, 4], [5, 6], [7, 8], [9, 9]]


def topp(name: str, rules: str, drafts: list[int], wanted: list[int], lens: Any, **given: Any) -> Case:
    """One slot under TOPP; the first candidate of a row is drawn, of which `lens` says how many count."""
    common: dict[str, Any] = {
        "candidate_scores": [[1.0, 1e-6]] * 5,  # top_p's mass on the best, so that phase 2 is no draw
        "top_p": [1.0],
        "candidate_ids": IDS,
        "candidate_lens": lens,
    }
    return emits(name, rules, [drafts], [wanted], Strategy.TOPP, **{**common, **given})


def _topp() -> Iterator[Case]:
    one = [1, 1, 1, 1, 1]
    yield topp("any of the first candidates", "among-candidates", [0, 2, 3, 6, 8], [2, 3, 6, 8, 9], [2, 1, 2, 2, 2])
    yield topp("second, and only one counts", "among-candidates", [0, 2, 4, 6, 8], [2, 3], [2, 1, 2, 2, 2])
    yield topp("a length of 0 counts as 1", "among-candidates", [0, 1, 3, 0, 0], [1, 3, 5], [0, -3, 1, 1, 1])
    yield topp("a length beyond C counts as C", "among-candidates", [0, 2, 4, 0, 0], [2, 4, 5], [9, 9, 1, 1, 1])
    # 2 is second best at 0; 3 and 5 are best: a window of two. Position 3 is verified like any other.
    yield topp("a window is kept whole", "window resume", [0, 2, 3, 5, 7], [2, 3, 5, 7, 9], one)
    yield topp("after a window a draft may be wrong", "resume", [0, 2, 3, 5, 0], [2, 3, 5, 7], one)
    yield topp("a broken window", "window", [0, 2, 3, 6, 7], [1], one)
    yield topp("a window of one", "window resume", [0, 2, 3, 5, 7], [2, 3, 5, 7, 9], one, verify_window=1)
    yield topp("a window of one resumes and rejects", "resume", [0, 2, 3, 0, 7], [2, 3, 5], one, verify_window=1)
    yield topp("no window past the last draft", "window", [0, 1, 3, 6, 7], [1, 3, 5], one)
    yield topp("an end token inside a window", "window end-token", [0, 2, 3, 5, 7], [2, 3], one, end_tokens=[3])
    yield topp("the limit inside a window", "window limit", [0, 2, 3, 5, 7], [2, 3], one, max_dec_len=[8])
    light = [[1.0, 0.0], [1.0, 1e-6], [0.0, 1.0], [1.0, 1.0], [1.0, 1.0]]
    yield topp("a candidate without mass", "no-mass", [0, 2, 3, 5, 7], [1], [2] * 5, candidate_scores=light)
    yield topp("a second one, whose window follows", "no-mass", [0, 2, 3, 5, 7], [1], one, candidate_scores=light)
    yield topp(
        "a best one without mass", "no-mass", [0, 1, 4, 5, 7], [1, 4, 5], [2, 2, 1, 2, 2], candidate_scores=light
    )
    yield emits(
        "no candidate has mass", "no-candidate-mass", [[0]], [[4]], Strategy.TOPP, candidate_ids=[[4, 3]],
        candidate_scores=[[0, 0]], candidate_lens=[2], top_p=[1.0],
    )  # fmt: skip
    yield emits(
        "top p of 0 asks for the first candidate", "no-candidate-mass", [[0]], [[4]], Strategy.TOPP,
        candidate_ids=[[4, 3]], candidate_scores=[[0.5, 0.5]], candidate_lens=[2], top_p=[0.0],
    )  # fmt: skip
    yield emits(
        "a single candidate", "among-candidates window", [[0, 4]], [[3]], Strategy.TOPP, candidate_ids=[[3], [5]],
        candidate_scores=[[1], [1]], candidate_lens=[1, 1], top_p=[1.0],
    )  # fmt: skip


def _rejection() -> Iterator[Case]:
    strategy = Strategy.REJECTION
    # p never exceeds q, and the draft is impossible under p: the residual is empty.
    p, q = [[0.25, 0.375, 0.0], [0, 0, 1.0]], [[[0.5, 0.5, 1.0]]]
    yield emits(
        "an empty residual", "empty-residual residual", [[0, 2]], [[1]], strategy, target_probs=p, draft_probs=q
    )
    yield emits(
        "no distribution at all", "empty-residual", [[0, 1]], [[0]], strategy, target_probs=[[0.0, 0.0], [1.0, 0.0]]
    )
    for draft in (-1, 2, 2**40):
        yield emits(
            f"draft {draft} is no token", "no-token", [[0, draft]], [[1]], strategy,
            target_probs=[[0.0, 1.0], [1.0, 0.0]],
        )  # fmt: skip
    yield emits("a certain draft", "one-hot bonus", [[0, 1]], [[1, 0]], strategy, target_probs=[[0.0, 1.0], [1.0, 0.0]])
    yield emits(
        "an impossible draft", "one-hot residual", [[0, 1]], [[0]], strategy, target_probs=[[1.0, 0.0], [0.0, 1.0]]
    )
    yield emits(
        "q is the draft's, not the best's", "rejection", [[0, 1]] * 64, [[1, 0]] * 64, strategy,
        target_probs=[[0.75, 0.25, 0.0], [1.0, 0.0, 0.0]] * 64, draft_probs=[[[0.75, 0.25, 0.0]]] * 64,
        seed=list(range(64)),
    )  # fmt: skip
    bonus: dict[str, Any] = {"target_probs": [[0.0, 1.0], [1.0, 0.0]], "draft_probs": [[[0.0, 1.0]]]}
    # Under these the draft is never verified, so nothing is taken away from p, though p - q would be empty.
    policy = {"accept_policy": AcceptPolicy.REJECT_ALL}
    yield emits("reject all draws from p", "bonus reject-all", [[0, 1]], [[1]], strategy, **bonus, **policy)
    yield emits(
        "a forced marker draws from p", "bonus reasoning", [[0, 1]], [[1]], strategy, **bonus, reasoning_status=[1]
    )
    yield emits(
        "a prompt's last chunk draws from p", "bonus prefill", [[0, 1]], [[1]], strategy, **bonus,
        seq_lens_encoder=[2], seq_lens_decoder=[3], step_idx=[0],
    )  # fmt: skip
