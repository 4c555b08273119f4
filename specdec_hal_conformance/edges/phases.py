"""Section 8: thinking limits and the reasoning constraint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from specdec_hal.ops.spec import FLOATS
from specdec_hal_conformance.building import logits
from specdec_hal_conformance.case import Case
from specdec_hal_conformance.edges.edge import edge

LIMIT = "limit_thinking"
REASON = "reasoning_constraint"
END, STOP = 50, 2
"""The tokens that end thinking and generation."""
TEXT = [40, END, 41]
ANSWER = len(TEXT) + 1
"""limit_status of a request whose answer begins."""


def edges() -> Iterator[Case]:
    """Both ops."""
    yield from _thinking()
    yield from _fastdeploy()
    yield from _answers()
    yield from _slots()
    yield from _status()
    yield from _masks()


def limits(
    name: str,
    rules: str,
    expected: tuple[Sequence[int], int] | tuple[Sequence[int], int, int],
    emitted: Sequence[int],
    *,
    status: int = 0,
    think: int = -1,
    reply: int = -1,
    **given: Any,
) -> Case:
    """One slot: `expected` its tokens, limit_status and, if it changes, max_reply_lens; its tokens are cut there."""
    tokens, then, *allowed = expected
    row = [*tokens, *(emitted[len(tokens) :] if given.get("keep_tail") else [-1] * (len(emitted) - len(tokens)))]
    return edge(
        LIMIT, name, rules,
        {
            "accept_tokens": [row], "accept_num": [len(tokens)], "limit_status": [then],
            "max_reply_lens": allowed or [reply],
        },
        **{
            "accept_tokens": [list(emitted)], "accept_num": [len(emitted)], "limit_status": [status],
            "max_think_lens": [think], "max_reply_lens": [reply], "end_tokens": [STOP, 3], "inject_token_ids": TEXT,
            "think_end_id": END, **given,
        },
    )  # fmt: skip


def _thinking() -> Iterator[Case]:
    yield limits("below the limit", "thinking", ([5, 6, 7], 0), [5, 6, 7], think=3)
    yield limits("the text begins at the limit", "think-limit inject cut", ([5, 6, 40], 2), [5, 6, 7, 8], think=2)
    yield limits("steps before count", "think-limit", ([5, 40], 2), [5, 6, 7], think=10, step_idx=[9])
    yield limits("a limit that is long past", "think-limit", ([40], 2), [5, 6], think=10, step_idx=[99])
    yield limits("no thinking at all", "think-limit", ([40], 2), [5, 6], think=0)
    yield limits(
        "any number of steps", "think-limit", ([40], 2), [5, 6], think=2**31 - 1, step_idx=[2**63 - 1]
    )  # fmt: skip
    yield limits("steps before the first", "thinking", ([5, 6], 0), [5, 6], think=0, step_idx=[-(2**63)])
    yield limits("thinking ends by itself", "end reply", ([5, END, 6, 7], ANSWER + 2), [5, END, 6, 7], think=9)
    yield limits("thinking ends by itself at the limit", "end", ([5, END, 6], ANSWER + 1), [5, END, 6], think=1)
    yield limits("thinking ends by itself without a limit", "end", ([END], ANSWER), [END], reply=9)
    yield limits("an end token in thought", "end-token cut", ([5, 40], 2), [5, 3], think=9)
    yield limits("an end token in thought without a limit", "thinking", ([5, STOP], 0), [5, STOP], reply=9)
    for status, then in ((1, [40]), (2, [END]), (3, [41])):
        yield limits(f"token {status} of the text", "inject cut", (then, status + 1), [5, 6], status=status, think=0)
    yield limits("the text as it was drawn", "same inject", ([40, END, 41, 6], ANSWER + 1), [40, END, 41, 6], think=0)
    yield limits("a part of the text as drawn", "same cut", ([40, END, 41], ANSWER), [40, END, 6, 7], think=0)
    yield limits("a text of 64-bit ids", "inject", ([2**40 + 1], 2), [1], think=0, inject_token_ids=[2**40 + 1])
    yield limits("without a text", "text inject", ([5, END], 2), [5, 6, 7], think=1, inject_token_ids=[])
    yield limits("after a text of no tokens", "text reply", ([5, 6], 4), [5, 6], status=2, think=1, inject_token_ids=[])
    yield limits("a text runs on without limits of thinking", "inject", ([END], 3), [5], status=2, reply=9)
    yield limits("a status below all", "status", ([40], 2), [5], status=-7, think=0)
    yield limits("a status above all", "status", ([5, 6], 2**31 - 1), [5, 6], status=2**31 - 1, think=0)


def _fastdeploy() -> Iterator[Case]:
    theirs: dict[str, Any] = {"fastdeploy": True}
    yield limits("exactly at the limit", "exact inject cut", ([5, 40], 2), [5, 6], think=10, step_idx=[9], **theirs)
    yield limits("past the limit", "exact", ([5, 6], 0), [5, 6], think=10, step_idx=[11], **theirs)
    yield limits(
        "no step is past an int32", "exact", ([5, 6], 0), [5, 6], think=2**31 - 1, step_idx=[2**63 - 1], **theirs
    )
    yield limits("no thinking at all, at any step", "exact", ([40], 2), [5, 6], think=0, step_idx=[7], **theirs)
    yield limits(
        "thought ends by itself", "allowance end gap", ([5, END, 6, 7], ANSWER + 3, 7), [5, END, 6, 7], think=9,
        reply=5, **theirs,
    )  # fmt: skip
    yield limits(
        "the answer is as much longer", "allowance reply-limit", ([END, 5, 6, STOP], ANSWER + 3, 2), [END, 5, 6, 7, 8],
        reply=0, **theirs,
    )  # fmt: skip
    yield limits(
        "as much as an int32 holds", "allowance", ([END], ANSWER, 2**31 - 1), [END], reply=2**31 - 2, **theirs
    )  # fmt: skip
    yield limits("no limit does not grow", "allowance", ([END, 5], ANSWER + 2), [END, 5], think=3, **theirs)
    yield limits("the text adds nothing", "allowance inject", ([40], 2), [5, 6], think=0, reply=5, **theirs)
    without: dict[str, Any] = {**theirs, "inject_token_ids": []}
    yield limits("the limit without a text", "no-text", ([5, 6], 1), [5, 6], think=1, **without)
    yield limits(
        "the answer after no text", "no-text reply-limit", ([5, 6, 7, STOP], 3), [5, 6, 7, 8, 9], think=1, reply=1,
        **without,
    )  # fmt: skip
    yield limits("an end token without a text", "no-text", ([5, 3, 6], 0), [5, 3, 6], think=9, **without)
    yield limits("the end of thought without a text", "no-text end", ([5, END, 6], 3), [5, END, 6], think=9, **without)
    yield limits(
        "an answer of no token, by either status", "gap reply-limit cut", ([501, STOP], 3), [501, 502, 503], status=1,
        reply=1, **without,
    )  # fmt: skip
    yield limits(
        "an answer of no token", "gap reply-limit cut", ([501, STOP], 3), [501, 502, 503], status=2, reply=1, **without
    )  # fmt: skip
    yield limits(
        "no answer at all, theirs", "gap reply-limit", ([STOP], ANSWER + 1), [5], status=ANSWER, reply=0, **theirs
    )
    yield limits(
        "another end token at the limit", "any-end cut", ([5, STOP], ANSWER + 2), [5, 3, 6], status=ANSWER, reply=1,
        **theirs,
    )  # fmt: skip
    yield limits(
        "the first end token at the limit", "any-end same", ([5, STOP, STOP], ANSWER + 2), [5, STOP, 6], status=ANSWER,
        reply=1, **theirs,
    )  # fmt: skip
    yield limits("what follows the text stays", "tail inject", ([5, 40], 2), [5, 6, 7], think=1, keep_tail=True)


def _answers() -> Iterator[Case]:
    yield limits("an answer within its limit", "reply", ([5, 6], ANSWER + 2), [5, 6], status=ANSWER, reply=2)
    yield limits(
        "an answer ends at its limit", "reply-limit cut", ([5, 6, STOP], ANSWER + 2), [5, 6, 7, 8], status=ANSWER,
        reply=2,
    )  # fmt: skip
    yield limits("an answer that is too long", "reply-limit", ([STOP], ANSWER + 9), [5], status=ANSWER + 9, reply=2)
    yield limits("no answer at all", "reply-limit end", ([END, STOP], ANSWER), [END, 5, 6], reply=0)
    yield limits(
        "an answer that ends by itself at its limit", "reply same", ([5, 3], ANSWER + 2), [5, 3], status=ANSWER, reply=1
    )  # fmt: skip
    yield limits(
        "no end token to end an answer with", "reply-limit", ([5, 6], ANSWER + 2), [5, 6], status=ANSWER, reply=0,
        end_tokens=[],
    )  # fmt: skip
    yield limits("an answer without a limit", "reply", ([5, END], ANSWER + 2), [5, END], status=ANSWER, think=0)


def _slots() -> Iterator[Case]:
    yield limits("without limits", "off", ([5, END, STOP], 0), [5, END, STOP])
    yield limits("a stopped slot", "stopped", ([5, 6], 0), [5, 6], think=0, stop_flags=[True])
    for count in (0, -3):
        yield edge(
            LIMIT, f"{count} tokens emitted", "nothing",
            {"accept_tokens": [[5, 6]], "accept_num": [count], "limit_status": [-9]},
            accept_tokens=[[5, 6]], accept_num=[count], limit_status=[-9], max_think_lens=[0], max_reply_lens=[0],
            end_tokens=[STOP], inject_token_ids=TEXT, think_end_id=END,
        )  # fmt: skip
    yield edge(
        LIMIT, "each slot has its own", "think-limit reply-limit off stopped cut",
        {
            "accept_tokens": [[40, -1], [5, 6], [STOP, -1], [5, 6], [5, 40]], "accept_num": [1, 2, 1, 2, 2],
            "limit_status": [2, 0, ANSWER, 0, 2],
        },
        accept_tokens=[[5, 6]] * 5, accept_num=[2, 2, 2, 2, 9], limit_status=[0, 0, ANSWER, 0, 0],
        max_think_lens=[0, -1, -1, 0, 1], max_reply_lens=[-1, -1, 0, 0, 0], stop_flags=[False] * 3 + [True, False],
        end_tokens=[STOP], inject_token_ids=TEXT, think_end_id=END,
    )  # fmt: skip
    many = 70
    yield edge(
        LIMIT, "seventy slots", "think-limit cut",
        {
            "accept_tokens": [[*range(b % 3), 40, *[-1] * (2 - b % 3)] for b in range(many)],
            "accept_num": [b % 3 + 1 for b in range(many)], "limit_status": [2] * many,
        },
        accept_tokens=[[0, 1, 2]] * many, accept_num=[3] * many, limit_status=[0] * many,
        max_think_lens=[b + b % 3 for b in range(many)], max_reply_lens=[-1] * many, step_idx=list(range(many)),
        end_tokens=[], inject_token_ids=TEXT, think_end_id=END,
    )  # fmt: skip


NL = 4
"""The token between thinking and the answer."""
BORDER = [NL, END, NL, NL]


def _reason(name: str, rules: str, status: int, then: int, text: list[int], **given: Any) -> Case:
    """One decoding slot that has generated `text`, and whose row is [1, 2, 3]."""
    row = [-1e10, 2, -1e10] if then == 2 else [1, 2, 3]
    given = {"token_ids_all": [[*text, *BORDER, 0, 0]], "step_idx": [len(text)], "reasoning_status": [status], **given}
    return constrains(name, rules, {"reasoning_status": [then], "logits": [row]}, **given)


def constrains(name: str, rules: str, expected: dict[str, Any], **given: Any) -> Case:
    """`reasoning_constraint` of one slot with one row, and one allowed token, 1, unless `given` says otherwise."""
    return edge(
        REASON, name, rules, expected,
        **{
            "prompt_lens": [0], "enable_thinking": [True], "cu_seqlens_q_output": [0, 1],
            "logits": logits([[1, 2, 3]]), "allowed_tokens": [1], "think_end_id": END, "line_break_id": NL, **given,
        },
    )  # fmt: skip


def _status() -> Iterator[Case]:
    for k in range(4):
        newest = [9, 9, 9, 9]
        newest[3 - k] = END
        yield _reason(f"the end of thinking {k} tokens ago", "seen untouched", 0, 1, [7, *newest])
        yield _reason(f"it is not after it yet, {k} tokens ago", "passed", 1, 1, [7, *newest])
    yield _reason("the end of thinking too long ago", "seen", 0, 0, [END, 9, 9, 9, 9])
    yield _reason("the end of thinking as the only token", "seen", 0, 1, [END])
    yield _reason("the end of thinking in the prompt", "seen", 0, 0, [END, 9], prompt_lens=[1], step_idx=[1])
    yield _reason("nothing generated", "seen", 0, 0, [])
    yield _reason("at the border", "boundary mask", 1, 2, [7, *BORDER])
    yield _reason("at the border at once", "boundary seen", 0, 2, BORDER)
    yield _reason("before the fourth token", "boundary", 1, 1, BORDER[1:])
    yield _reason("before the fourth token of a long prompt", "boundary", 1, 1, BORDER, prompt_lens=[1], step_idx=[3])
    for i, other in enumerate(BORDER):
        text = [7, *BORDER]
        text[1 + i] = 9
        yield _reason(f"a border with another token {i}", "boundary passed", 1, 3 if other == END else 1, text)
    yield _reason("past it", "passed", 1, 3, [9, 9, 9, 9])
    yield _reason("past it, too early", "passed", 1, 1, [9, 9, 9])
    yield _reason("once", "once", 2, 3, BORDER)
    for status in (3, 4, -1, 2**31 - 1):
        yield _reason(f"status {status}", "finished", status, status, BORDER)
    yield _reason("no thinking", "no-thinking mask", 0, 2, [], enable_thinking=[False], seq_lens_encoder=[5])
    yield _reason("thinking", "no-thinking", 0, 0, [], seq_lens_encoder=[5])
    yield _reason("no thinking, resumed", "no-thinking", 0, 0, [9], enable_thinking=[False], seq_lens_encoder=[5])
    yield _reason("no thinking, decoding", "no-thinking", 0, 0, [], enable_thinking=[False])
    yield _reason("a stopped slot", "stopped", 1, 1, BORDER, stop_flags=[True])
    yield _reason("a slot without a row", "no-row", 1, 1, BORDER, cu_seqlens_q_output=[0, 0])
    passed = [7, *BORDER, 9]
    for seen, then in ((-1, 3), (1, 3), (4, 3), (99, 0), (-(2**63), 3)):
        expected = {"reasoning_status": [then], "reasoning_seen": [6], "logits": [[1, 2, 3]]}
        given = {"reasoning_seen": [seen], "token_ids_all": [[*passed, 0, 0]], "step_idx": [6]}
        yield constrains(f"a step over the border, {seen} seen", "every-token", expected, reasoning_status=[0], **given)
    for status, then in ((2, 2), (1, 1)):
        yield _reason(
            f"no new token, status {status}", "same-token mask", status, then, [7, *BORDER], reasoning_seen=[5]
        )
    begins = {"enable_thinking": [False], "seq_lens_encoder": [5]}
    yield _reason("the first chunk of a prompt", "every-token no-thinking", 0, 2, [], reasoning_seen=[-1], **begins)
    yield _reason("the second chunk of a prompt", "same-token", 2, 2, [], reasoning_seen=[0], **begins)
    rows = [[1.0, 2, 3]] * 4
    masked = [[1.0, 2, 3], [1.0, 2, 3], [-1e10, 2, -1e10], [1.0, 2, 3]]
    drafts: dict[str, Any] = {
        "token_ids_all": [[7, NL, END, 0, 0, 0]], "step_idx": [3], "cu_seqlens_q_output": [0, 4],
        "logits": logits(rows), "draft_tokens": [[END, NL, NL, 9, 9]],
    }  # fmt: skip
    yield constrains(
        "drafts over the border", "every-row", {"reasoning_status": [1], "logits": masked}, reasoning_status=[0],
        **drafts,
    )  # fmt: skip
    yield constrains(
        "a prompt has one row", "every-row", {"reasoning_status": [1], "logits": rows}, reasoning_status=[0],
        seq_lens_encoder=[4], **drafts,
    )  # fmt: skip
    drafts["cu_seqlens_q_output"] = [2, 6]
    yield constrains(
        "drafts over the border, rows beyond the last", "every-row capacity",
        {"reasoning_status": [1], "logits": rows}, reasoning_status=[0], **drafts,
    )  # fmt: skip
    yield _reason("a prompt beyond its row", "boundary", 1, 1, BORDER, prompt_lens=[99])


def _masks() -> Iterator[Case]:
    row = [float(v) for v in range(5)]
    rounded = float(np.uint32(0xD0150000).view(np.float32))  # the bfloat16 next to -1e10
    for dtype, low in zip(FLOATS, (-1e10, -1e4, rounded), strict=True):
        yield edge(
            REASON, f"the first row in {dtype}", "mask untouched outside",
            {"logits": [row, [low, 1, low, 3, low], row, row], "reasoning_status": [0, 2]},
            logits=logits([row] * 4, dtype), token_ids_all=[BORDER] * 2, step_idx=[0, 4], reasoning_status=[0, 1],
            enable_thinking=[True, True], cu_seqlens_q_output=[0, 1, 3], allowed_tokens=[3, 1, 5, -1, 2**40 + 2, 3],
            think_end_id=END, line_break_id=NL,
        )  # fmt: skip
    one: dict[str, Any] = {
        "token_ids_all": [BORDER], "step_idx": [4], "reasoning_status": [1], "enable_thinking": [True],
        "think_end_id": END, "line_break_id": NL,
    }  # fmt: skip
    yield edge(
        REASON, "no token is allowed", "mask", {"logits": [row], "reasoning_status": [2]}, logits=logits([row]),
        cu_seqlens_q_output=[0, 1], allowed_tokens=[], **one,
    )  # fmt: skip
    for first in (1, -1, 2**31 - 2):
        yield edge(
            REASON, f"row {first} of one", "capacity", {"logits": [row], "reasoning_status": [2]},
            logits=logits([row]), cu_seqlens_q_output=[first, first + 1], allowed_tokens=[1], **one,
        )  # fmt: skip
    yield edge(
        REASON, "a slot after one of two rows", "mask",
        {"logits": [row, row, [-1e10, 1, -1e10, 3, -1e10]], "reasoning_status": [0, 2]},
        logits=logits([row] * 3), token_ids_all=[[9] * 4, BORDER], step_idx=[4, 4], reasoning_status=[0, 1],
        enable_thinking=[True, True], cu_seqlens_q_output=[0, 2, 3], allowed_tokens=[3, 1], think_end_id=END,
        line_break_id=NL,
    )  # fmt: skip
    width = 5000
    kept = [0, 511, 512, 1023, 1024, width - 1]
    yield edge(
        REASON, "a wide row", "mask",
        {"logits": [[float(v) if v in kept else -1e10 for v in range(width)]]},
        logits=logits([np.arange(width)]), cu_seqlens_q_output=[0, 1], allowed_tokens=kept, **one,
    )  # fmt: skip
    yield edge(
        REASON, "padding is untouched", "mask",
        {"logits": [row], "reasoning_status": [2, 1]}, logits=logits([row]), token_ids_all=[BORDER] * 2,
        step_idx=[4, 4], reasoning_status=[1, 1], enable_thinking=[True, True], cu_seqlens_q_output=[0, 1],
        allowed_tokens=[0, 1, 2, 3, 4], think_end_id=END, line_break_id=NL,
    )  # fmt: skip
    many = 20
    yield edge(
        REASON, "twenty slots", "mask boundary",
        {
            "logits": [[-1e10, 1.0] if b % 2 else [0.0, 1.0] for b in range(many)],
            "reasoning_status": [2 if b % 2 else 0 for b in range(many)],
        },
        logits=logits([[0, 1]] * many), token_ids_all=[BORDER if b % 2 else [9] * 4 for b in range(many)],
        step_idx=[4] * many, reasoning_status=[0] * many, enable_thinking=[True] * many,
        cu_seqlens_q_output=list(range(many + 1)), allowed_tokens=[1], think_end_id=END, line_break_id=NL,
    )  # fmt: skip
