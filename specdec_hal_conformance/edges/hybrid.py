"""Section 6: hybrid_mtp_ngram."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from specdec_hal.ops import MatchPolicy
from specdec_hal_conformance.case import Case
from specdec_hal_conformance.edges.edge import edge
from specdec_hal_conformance.edges.ngram import LEFTMOST, budget, proposes

OP = "hybrid_mtp_ngram"


def edges() -> Iterator[Case]:
    """hybrid_mtp_ngram."""
    text = [1, 2, 3, 4, 5, 9, 1]

    def hybrid(name: str, rules: str, drafts: list[int], mtp: tuple[int, ...], **given: Any) -> Iterator[Case]:
        yield from proposes(name, rules, text, 6, drafts, op=OP, mtp=mtp, **given)

    yield from hybrid("appended to MTP drafts", "appended base query", [2, 3, 4, 5, 9], (2, 3))
    yield from hybrid("nothing like the last draft", "query", [2, 8], (2, 8))
    given: dict[str, Any] = {"min_ngram_size": 4, "max_ngram_size": 4}
    spanning = [9, 1, 2, 3, 6, 9, 1]
    yield from proposes(
        "leftmost queries end at the prompt", "query", spanning, 6, [2, 3], op=OP, mtp=(2, 3), match_policy=LEFTMOST,
        **given,
    )  # fmt: skip
    yield from proposes(
        "latest queries begin in the prompt", "query", spanning, 6, [2, 3, 6, 9, 1], op=OP, mtp=(2, 3), **given
    )
    yield from hybrid("MTP drafts survive a budget of 0", "kept budget", [2, 3], (2, 3), token_budget=0)
    yield from hybrid("the budget grants one more", "budget kept", [2, 3, 4], (2, 3), token_budget=4)
    yield from hybrid("the limit", "wanted", [2, 3, 4], (2, 3), max_dec_len=[5])
    asked: dict[str, Any] = {"use_draft_token_num": True}
    yield from hybrid("one more draft is wanted", "wanted", [2, 3, 4], (2, 3), draft_token_num=[3], **asked)
    yield from hybrid("fewer wanted than there are", "wanted kept", [2, 3], (2, 3), draft_token_num=[0], **asked)
    yield from hybrid("the request is not asked", "wanted", [2, 3, 4, 5, 9], (2, 3), draft_token_num=[0])
    yield from hybrid("its own drafts are searched", "text", [2, 2, 2], (2, 2), min_ngram_size=1)
    yield from hybrid("leftmost in the prompt first", "text", [2, 3, 4, 5, 9], (2, 3), match_policy=LEFTMOST)
    yield from hybrid("leftmost in its own drafts", "text", [7, 7, 7], (7, 7), match_policy=LEFTMOST)
    skips: dict[str, Any] = {"skip_last": True}
    yield from hybrid("not in the last draft", "skip-last", [7, 7], (7, 7), match_policy=LEFTMOST, **skips)
    yield from hybrid("up to the last draft", "skip-last", [7, 7, 7, 7], (7, 7, 7), match_policy=LEFTMOST, **skips)
    yield from hybrid("latest, not in the last draft", "skip-last", [7, 7, 7, 7], (7, 7, 7), **skips)
    yield from hybrid("padded with the last draft", "pad", [2, 8, 8, 8, 8], (2, 8), pad_to_max=True)
    history: dict[str, Any] = {
        "token_ids_all": [[9, 2, 3, 4, 5, 9, 1, 2, 3, 7]], "pre_ids": [[1, 2, 3, 8]], "step_idx": [2],
        "match_policy": LEFTMOST,
    }  # fmt: skip
    for op, mtp in ((OP, [2, 3]), ("ngram_match", [])):
        given = {"op": op, "mtp": tuple(mtp), **history}
        yield from proposes("a history of its own", "pre-ids", text, 6, [*mtp, 4, 5, 9], **given)
        given["max_dec_len"] = [5]
        yield from proposes("the limit in a history of its own", "pre-ids-wanted", text, 6, [*mtp, 4, 5], **given)
        given["step_idx"] = [-1]
        yield from proposes("an empty history of its own", "pre-ids", text, 6, mtp, **given)
    yield from budget(OP)
    yield edge(
        OP, "MTP drafts of other slots count", "budget base",
        {"seq_lens_this_time": [3, 2, 0, 4]},
        token_ids_all=[[1, 2, 3, 1]] * 4, prompt_lens=[3] * 4, step_idx=[1] * 4, seq_lens_decoder=[3, 3, 0, 0],
        seq_lens_encoder=[0, 0, 0, 4], seq_lens_this_time=[2, 2, 3, 4], draft_tokens=[[1, 2, 0, 0]] * 4,
        draft_token_num=[3] * 4, max_ngram_size=1, token_budget=6, match_policy=LEFTMOST,
    )  # fmt: skip
    yield edge(
        OP, "lengths on entry are clamped", "base", {"seq_lens_this_time": [1, 3]},
        token_ids_all=[[5, 6, 7, 8]] * 2, prompt_lens=[3] * 2, step_idx=[1] * 2, seq_lens_decoder=[3, 3],
        seq_lens_this_time=[-2, 99], draft_tokens=[[8, 1, 2]] * 2, max_ngram_size=1, token_budget=99,
        match_policy=LEFTMOST,
    )  # fmt: skip
    cycles: dict[str, Any] = {"continue_cycles": True}
    for policy in MatchPolicy:
        shown = policy.name.lower()
        yield from hybrid(f"{shown}: a cycle of MTP drafts", "cycles", [7] * 5, (7, 7), match_policy=policy, **cycles)
    # "9 1" is followed by the drafts 9 1, with which the text ends, and then by the new drafts.
    yield from hybrid("a cycle across the drafts", "cycles", [9, 1, 9, 1, 9], (9, 1), max_ngram_size=2, **cycles)
    wish: dict[str, Any] = {"draft_token_num": [4], "use_draft_token_num": True}
    yield from hybrid("a cycle of as many as are wanted", "cycles wanted", [7] * 4, (7, 7), **wish, **cycles)
    # "1 2" is in the prompt 1 2 3: after that come 1 2, then the drafts.
    yield from proposes("leftmost, from the prompt to the end and on", "cycles", [1, 2, 3, 1], 3, [2, 3, 1, 2, 3],
                        op=OP, mtp=(2,), match_policy=LEFTMOST, **cycles)  # fmt: skip
    # "1 2" is followed by the searched 1, and that by the MTP draft 2, which is not searched.
    yield from proposes("a cycle with the last draft, which is not searched", "cycles", [1, 2, 1], 1, [2, 1, 2, 1, 2],
                        op=OP, mtp=(2,), skip_last=True, **cycles)  # fmt: skip
