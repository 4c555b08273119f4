"""Section 6: ngram_match and its index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from specdec_hal.ops import MatchPolicy
from specdec_hal_conformance.building import build
from specdec_hal_conformance.case import Case, Inputs, Workspace
from specdec_hal_conformance.edges.edge import edge

LEFTMOST, LATEST = MatchPolicy.LEFTMOST, MatchPolicy.LATEST
UNSEEN = -7


def proposes(
    name: str, rules: str, text: list[int], prompt_len: int, drafts: list[int], *, op: str = "ngram_match", k: int = 5,
    mtp: tuple[int, ...] = (), stale: tuple[int, ...] = (), **given: Any,
) -> Iterator[Case]:  # fmt: skip
    """One decoding slot and its drafts, without and with an index; cells after the drafts stay as they were."""
    row = [text[-1], *mtp, *[UNSEEN] * (k - len(mtp))]
    tail = row[len(drafts) + 1 :]
    expected = {"seq_lens_this_time": [1 + len(drafts)], "draft_tokens": [[text[-1], *drafts, *tail]]}
    if "token_budget" in given and "pad_to_max" not in given:  # what was found and not granted may stand after them
        del expected["draft_tokens"]
    arguments: dict[str, Any] = {
        "token_ids_all": [text + list(stale)],
        "prompt_lens": [prompt_len],
        "step_idx": [len(text) - prompt_len],
        "draft_token_num": [k],
        "seq_lens_decoder": [len(text) - 1],
        "draft_tokens": [row],
        "seq_lens_this_time": [1 + len(mtp)],
        "max_ngram_size": 3,
        "token_budget": 10**9,
        "match_policy": LATEST,
        **given,
    }
    yield edge(op, name, rules, expected, **arguments)
    with_index = "index" if op == "ngram_match" else ""
    yield edge(op, f"{name}, with an index", f"{rules} {with_index}", expected, index=True, **arguments)


def edges() -> Iterator[Case]:
    """ngram_match, ngram_index_update, ngram_index_reset."""
    yield from _matches()
    yield from _limits()
    yield from budget("ngram_match")
    yield from _cycles()
    yield from _index()


def _matches() -> Iterator[Case]:
    two: dict[str, Any] = {"max_ngram_size": 2}
    only_two: dict[str, Any] = {"max_ngram_size": 2, "min_ngram_size": 2}
    text = [1, 2, 3, 4, 1, 2, 5, 1, 2]  # prompt 1 2 3 | generated 4 1 2 5 1 2
    for policy in (LEFTMOST, LATEST):
        skips: dict[str, Any] = {"match_policy": policy, "skip_last": True}
        yield from proposes(f"{policy.name} without the last token", "skip-last", [1, 5, 6, 5], 1, [6], **skips)
        yield from proposes(f"{policy.name}, only the last token", "skip-last", [1, 5, 5], 1, [], **skips)
    yield from proposes(
        "leftmost ends with the prompt", "leftmost tokens-left row", text, 3, [3], match_policy=LEFTMOST, **two
    )
    yield from proposes("latest goes to the end", "latest tokens-left", text, 3, [5, 1, 2], **two)
    # 8 9 ends the prompt: nothing follows it there; as one text, generated tokens do.
    text = [1, 8, 9, 5, 6, 8, 9]
    yield from proposes(
        "leftmost at the prompt's end", "leftmost no-match", text, 3, [], match_policy=LEFTMOST, **only_two
    )
    yield from proposes("latest at the prompt's end", "latest", text, 3, [5, 6, 8, 9], **only_two)
    text = [1, 8, 9, 5, 8, 9]  # 8 | 9 straddles
    yield from proposes("latest across the prompt's end", "latest", text, 2, [5, 8, 9], **only_two)
    yield from proposes("leftmost never crosses it", "leftmost", text, 2, [], match_policy=LEFTMOST, **only_two)
    text = [9, 5, 6, 5, 7, 8, 5]  # prompt 9; generated 5 6 5 7 8 5
    yield from proposes("leftmost in the generated part", "leftmost", text, 1, [6, 5, 7, 8, 5], match_policy=LEFTMOST)
    yield from proposes("latest in the generated part", "latest", text, 1, [7, 8, 5])
    for policy in MatchPolicy:
        shown = policy.name.lower()
        how: dict[str, Any] = {"match_policy": policy}
        # If step_idx were an index, the query would be 2 3 with the stale 3, and match the prompt.
        yield from proposes(
            f"{shown}: the cell after the text", "query", [2, 3, 4, 9, 2], 3, [], stale=(3,), **how, **only_two
        )
        yield from proposes(
            f"{shown}: nothing follows the end", "no-match", [7, 8, 5, 6], 2, [], stale=(9, 5, 6), **how
        )
        text = [3, 1, 4, 2, 3, 5, 6, 2, 3]  # after "2 3": 5; after the first "3" alone: 1
        yield from proposes(
            f"{shown}: longer queries first",
            "longest-first",
            text,
            7,
            [5, 6, 2, 3] if policy is LATEST else [5, 6],
            **how,
            **two,
        )
        text = [0, 1, 4, 0, 3, 5, 6, 2, 3]
        wanted = [5, 6, 2, 3] if policy is LATEST else [5, 6]
        yield from proposes(f"{shown}: shorter queries next", "longest-first", text, 7, wanted, **how, **two)
        yield from proposes(
            f"{shown}: ids of 64 bits", "query", [2**40 + 1, 7, 1, 8, 9, 2**40 + 1], 5,
            [7, 1, 8, 9] + ([2**40 + 1] if policy is LATEST else []), **how, max_ngram_size=1,
        )  # fmt: skip
    text = [1, 2, 5, 1, 2]  # one token generated: a query of two needs the prompt's last
    yield from proposes("leftmost queries end at the prompt", "query", text, 4, [], match_policy=LEFTMOST, **only_two)
    yield from proposes("latest queries span it", "query query-spans", text, 4, [5, 1, 2], **only_two)
    yield from proposes("latest queries stop at the text's start", "query-spans", text, 4, [], min_ngram_size=6,
                        max_ngram_size=8)  # fmt: skip
    yield from proposes("nothing generated, nothing looked up", "query-spans", text, 5, [], **two)
    yield from proposes("a query of one", "query", text, 4, [5, 1, 2], max_ngram_size=1)
    yield from proposes("all tokens equal, latest", "latest tokens-left", [4] * 6, 3, [4])
    yield from proposes(
        "all tokens equal, leftmost", "leftmost", [4] * 6, 3, [4, 4], match_policy=LEFTMOST, max_ngram_size=1
    )


def _limits() -> Iterator[Case]:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1]
    yield from proposes("as many as a row holds", "wanted", text, 8, [2, 3, 4, 5, 6])
    yield from proposes("as many as the request wants", "wanted", text, 8, [2, 3], draft_token_num=[2])
    # The base token's successor takes the last place.
    yield from proposes("as many as the limit leaves", "wanted", text, 8, [2, 3], max_dec_len=[4])
    yield from proposes("one place left", "wanted no-match", text, 8, [], max_dec_len=[2])
    yield from proposes("no place left", "wanted", text, 8, [], max_dec_len=[1])
    yield from proposes("no drafts wanted", "wanted", text, 8, [], draft_token_num=[0])
    not_asked: dict[str, Any] = {"draft_token_num": [0], "use_draft_token_num": False}
    yield from proposes("the request is not asked", "wanted", text, 8, [2, 3, 4, 5, 6], **not_asked)
    pad: dict[str, Any] = {"pad_to_max": True}
    yield from proposes("padded with the last draft", "pad", [1, 2, 3, 1], 3, [2, 3, 1, 1, 1], max_ngram_size=1, **pad)
    granted: dict[str, Any] = {"max_ngram_size": 1, "token_budget": 3, **pad}
    yield from proposes("padded with the last draft granted", "pad budget", [1, 2, 3, 1], 3, [2, 3, 3, 3, 3], **granted)
    yield from proposes("padded with the base token", "pad", [1, 2, 3, 4], 3, [4] * 5, **pad)
    yield from proposes("padded whatever the limit", "pad", [1, 2, 3, 1], 3, [1] * 5, **pad, max_dec_len=[1])
    yield edge(
        "ngram_match", "prefill and idle slots", "prefill idle row",
        {"seq_lens_this_time": [4, 0, 0], "draft_tokens": [[UNSEEN] * 3] * 3},
        token_ids_all=[[1, 2, 1, 2]] * 3, prompt_lens=[4] * 3, draft_token_num=[2] * 3, seq_lens_encoder=[4, 0, 0],
        seq_lens_decoder=[0, 0, 0], seq_lens_this_time=[4, 3, 0], draft_tokens=[[UNSEEN] * 3] * 3, max_ngram_size=2,
        token_budget=10**9, match_policy=LATEST,
    )  # fmt: skip
    yield edge(
        "ngram_match", "padding pads no idle slot", "pad idle prefill",
        {"seq_lens_this_time": [2, 0], "draft_tokens": [[UNSEEN] * 3] * 2},
        token_ids_all=[[1, 2, 1, 2]] * 2, prompt_lens=[4] * 2, draft_token_num=[2] * 2, seq_lens_encoder=[2, 0],
        seq_lens_this_time=[2, 1], draft_tokens=[[UNSEEN] * 3] * 2, max_ngram_size=2,
        token_budget=10**9, match_policy=LATEST, pad_to_max=True,
    )  # fmt: skip


def budget(op: str) -> Iterator[Case]:
    """Three slots, each of which finds five drafts, share a budget."""

    def granted(
        name: str,
        budget: int,
        lens: list[int],
        enc: Any = (0, 0, 0),
        dec: Any = (8, 8, 8),
        slt: Any = (1, 1, 1),
        rules: str = "budget",
        **given: Any,
    ) -> Case:
        return edge(
            op, name, rules, {"seq_lens_this_time": lens},
            token_ids_all=[[1, 2, 3, 4, 5, 6, 7, 8, 1]] * 3, prompt_lens=[8] * 3, step_idx=[1] * 3,
            draft_token_num=[5] * 3, draft_tokens=[[1, 0, 0, 0, 0, 0]] * 3, max_ngram_size=1, match_policy=LEFTMOST,
            token_budget=budget, seq_lens_encoder=list(enc), seq_lens_decoder=list(dec), seq_lens_this_time=list(slt),
            **given,
        )  # fmt: skip

    yield granted("nine for three slots with five drafts", 9, [6, 2, 1])
    for budget, lens in (
        (0, [1, 1, 1]),
        (3, [1, 1, 1]),
        (4, [2, 1, 1]),
        (8, [6, 1, 1]),
        (17, [6, 6, 5]),
        (18, [6, 6, 6]),
    ):
        yield granted(f"budget of {budget}", budget, lens)
    yield granted("prefill chunks use the budget", 12, [4, 6, 2], enc=(4, 0, 0), slt=(4, 1, 1))
    yield granted("a later chunk counts as one slot", 12, [6, 5, 4], enc=(0, 0, 4), slt=(1, 1, 4))
    yield granted("a prompt's first chunk uses the budget", 12, [4, 6, 2], enc=(4, 0, 0), dec=(0, 8, 8), slt=(4, 1, 1))
    yield granted("a later first chunk counts as one slot", 12, [6, 5, 4], enc=(0, 0, 4), dec=(8, 8, 0), slt=(1, 1, 4))
    yield granted("padding slots reserve nothing", 8, [6, 2], enc=(0, 0, 4), slt=(1, 1))
    yield granted("an idle slot neither uses nor reserves", 9, [6, 0, 3], dec=(8, 0, 8), slt=(1, 5, 1))
    yield granted("padding ignores the budget", 9, [6, 6, 6], rules="pad budget", pad_to_max=True)


def _cycles() -> Iterator[Case]:
    def cycles(name: str, text: list[int], prompt_len: int, drafts: list[int], **given: Any) -> Iterator[Case]:
        yield from proposes(name, "cycles", text, prompt_len, drafts, continue_cycles=True, **given)

    # What follows "5 6 7" is 5 6 7, and then the drafts again.
    yield from cycles("a cycle of three", [9, 5, 6, 7, 5, 6, 7], 3, [5, 6, 7, 5, 6])
    yield from cycles("a cycle of one", [1, 4, 4], 1, [4] * 5)
    yield from cycles("a cycle longer than the drafts", [1, 2, 3, 4, 5, 6, 7, 8, 1], 8, [2, 3, 4, 5, 6])
    yield from cycles("a cycle as long as the drafts", [1, 2, 3, 4, 5, 1], 5, [2, 3, 4, 5, 1])
    text = [1, 2, 3, 1]
    yield from cycles("what follows is no cycle yet", text, 3, [2, 3, 1, 2, 3])
    yield from cycles("a cycle, as many as the request wants", text, 3, [2, 3, 1, 2], draft_token_num=[4])
    yield from cycles("a cycle, as many as the limit leaves", text, 3, [2, 3, 1, 2], max_dec_len=[6])
    yield from cycles("a cycle within the budget", text, 3, [2, 3, 1, 2], token_budget=5)
    yield from cycles("a cycle, padded", text, 3, [2, 3, 1, 2, 2], draft_token_num=[4], pad_to_max=True)
    yield from cycles("nothing to go on with", [1, 2, 3, 4], 3, [])
    # "1 2" is in the prompt 1 2 3: after that come the generated 4 1 2, and then the drafts.
    two: dict[str, Any] = {"match_policy": LEFTMOST, "max_ngram_size": 2}
    yield from cycles("leftmost, from the prompt to the end and on", [1, 2, 3, 4, 1, 2], 3, [3, 4, 1, 2, 3], **two)
    yield from cycles("leftmost, in the generated part", [9, 5, 6, 5], 1, [6, 5, 6, 5, 6], **two)
    # "1 2" is followed by the searched 1; the last token goes on after that, though no match may begin there.
    yield from cycles("a cycle with the last token, which is not searched", [7, 1, 2, 1, 2], 2, [1, 2, 1, 2, 1],
                      skip_last=True)  # fmt: skip
    yield from cycles("a cycle in a history of its own", [9, 2, 3, 4, 5, 9, 1], 6, [2, 1, 2, 1, 2], step_idx=[2],
                      pre_ids=[[1, 2, 1, 8]])  # fmt: skip
    yield from cycles("a cycle of ids of 64 bits", [2**40, 7, 2**40], 1, [7, 2**40, 7, 2**40, 7])


def _index() -> Iterator[Case]:
    m, length = 4, 12
    history: dict[str, Any] = {
        "token_ids_all": np.resize(np.array([1, 2, 3, 1, 2, 4, 1]), (m, length)).astype(np.int64),
        "prompt_lens": [5, 5, 0, 12], "step_idx": [4, 7, 12, 0], "seq_lens_encoder": [0, 2, 0, 0],
        "seq_lens_decoder": [8, 0, 11, 0], "max_ngram_size": 3, "min_ngram_size": 1,
    }  # fmt: skip

    def update(workspace: Workspace) -> Inputs:
        layout = workspace("ngram_index_update", M=m, L=length, max_ngram_size=3, min_ngram_size=1)["index"]
        return build("ngram_index_update", index=np.full(layout.shape, 0xA5, layout.dtype), **history)

    def reset(workspace: Workspace) -> Inputs:
        layout = workspace("ngram_index_reset", M=m, L=length, max_ngram_size=3, min_ngram_size=1)["index"]
        index = np.random.default_rng(1).integers(0, 256, layout.shape).astype(layout.dtype)
        return build("ngram_index_reset", index=index, reset_slots=[True, False, True, False])

    yield Case("ngram_index_update", "edge:decoding prefill and idle slots", update, ("append", "others"))
    yield Case("ngram_index_reset", "edge:two slots of four", reset, ("forget", "others"))
