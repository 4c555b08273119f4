"""`select_draft_path`: candidates, their scores after the previous token, and draws among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from specdec_hal.ops import Purpose
from specdec_hal.ops.spec import FLOATS
from specdec_hal_conformance.building import logits
from specdec_hal_conformance.case import Case
from specdec_hal_conformance.edges.edge import edge
from specdec_hal_conformance.expectations import Close

PATH = "select_draft_path"
INF, NAN = np.inf, np.nan
MOST = 2**31 - 1
NEAR = 1 + 2.0**-12
"""NEAR * NEAR is 1 + 2^-11 in float32, 2^-24 less than exactly."""
HUGE = 2.0**24
"""HUGE + 1 is HUGE in float32."""
LN2 = float(np.log(2))
# Token 1 prefers 2, and 2 prefers 1; after 0 and 3 no candidate is preferred.
SWAP: dict[str, Any] = {"predecessor_codes": [[0], [-1], [1], [0]], "successor_codes": [[0], [1], [-1], [0]]}


def edges() -> Iterator[Case]:
    """The op."""
    yield from _walks()
    yield from _candidates()
    yield from _scores()
    yield from _filters()
    yield from _draws()
    yield from _undefined()


def _walk(name: str, rules: str, tokens: list[int], offsets: list[int], anchors: list[int], **given: Any) -> Case:
    """Greedy by default; candidates are 1 and 2 with equal logits, so that codes decide."""
    rows = len(tokens)
    filled: dict[str, Any] = {
        "path_logits": [[0, 0]] * rows, "path_ids": [[1, 2]] * rows, "path_hidden": [[1]] * rows,
        "row_temperature": [0] * rows, "position": list(range(rows)), **SWAP,
    }  # fmt: skip
    return edge(
        PATH, name, rules, {"path_tokens": tokens}, cu_seqlens_q_output=offsets, anchor_tokens=anchors,
        **{**filled, **given},
    )  # fmt: skip


def _walks() -> Iterator[Case]:
    yield _walk("each draft after the one before", "anchor walk rows", [2, 1, 2, 1], [0, 4], [1])
    yield _walk("slots by their own anchors", "anchor walk", [2, 1, 1, 2, 1, 2], [0, 2, 4, 6], [1, 2, 3])
    for dtype in FLOATS:
        codes = {
            name: logits(SWAP[name], dtype) if name in SWAP else logits([[1]] * 3, dtype)
            for name in ("path_hidden", *SWAP)
        }
        yield _walk(f"codes of {dtype}", "walk dot", [2, 1, 2], [0, 3], [1], **codes)
    yield _walk("the row of the drafter turns the preference", "dot walk", [1, 1, 2], [0, 3], [1],
                path_hidden=[[-1], [-1], [1]])  # fmt: skip
    yield _walk("rows before and after the slots'", "tail rows", [-1, 2, 1, -1, -1], [1, 3], [1])
    yield _walk("a slot without rows", "rows", [2, 1, 2, 1], [0, 2, 2, 4], [1, 3, 1])
    yield _walk("offsets that descend", "rows", [2, 1, 2, 2], [0, 3, 1, 4], [1, 1, 1])
    yield _walk("wild offsets", "rows tail", [2, 1, 2], [-(2**31), MOST, 0, 2], [1, 2, 2])
    yield _walk("no slots", "tail", [-1, -1], [0], [])
    empty = {
        name: np.zeros((0, 2), np.int64 if name == "path_ids" else np.float32) for name in ("path_logits", "path_ids")
    }
    yield _walk("no rows", "rows", [], [0, 0], [1], path_hidden=np.zeros((0, 1), np.float32), **empty)
    for anchor in (-1, 4, 2**62, -(2**63)):
        yield _walk(f"anchor {anchor}", "unknown walk", [1, 2], [0, 2], [anchor],
                    predecessor_codes=[[1], [-1], [1], [-1]])  # fmt: skip
    many = 300
    yield _walk(
        "three hundred slots", "rows anchor walk", [t for b in range(many) for t in ([2, 1] if b % 2 else [1, 2])],
        list(range(0, 2 * many + 1, 2)), [1 if b % 2 else 2 for b in range(many)],
    )  # fmt: skip


def _row(
    name: str, rules: str, ids: list[int], scores: list[float], probs: Mapping[int, float] | None, **given: Any
) -> Case:
    """One row whose codes are 0. `probs`: by token, None for a row that gives -1; checked where one token has all."""
    expected: dict[str, Any] = {"probs": [[(probs or {}).get(t, 0.0) for t in range(64)]]}
    if probs is None or len(probs) == 1:
        expected["path_tokens"] = list(probs or [-1])
    elif not all(p in (1, 0.5, 0.25) for p in probs.values()):
        expected["probs"] = Close(expected["probs"])
    return edge(
        PATH, name, rules, expected, {"V": 64, "D": 1}, path_ids=[ids], path_logits=[scores],
        cu_seqlens_q_output=[0, 1], anchor_tokens=[1], probs=np.full((1, 64), 7, np.float32),
        **{"position": [0], **given},
    )  # fmt: skip


def _candidates() -> Iterator[Case]:
    greedy: dict[str, Any] = {"row_temperature": [0]}
    yield _row(
        "entries that are no tokens", "padding elsewhere", [-1, 64, 2**62, 5, 3], [9, 9, 9, 1, 0], {5: 1}, **greedy
    )
    yield _row("entries that are no tokens, drawn", "padding ratio", [-1, 64, 5, 3], [9, 9, 1, 1], {5: 0.5, 3: 0.5})
    yield _row("no candidates", "padding undefined", [-1, 64], [9, 9], None)
    yield _row("a token twice", "repeated ratio", [5, 5, 3], [1, 1, 1], {5: 0.5, 3: 0.5})
    yield _row("a token again with a larger logit", "repeated", [5, 3, 5], [0, 1, 9], {3: 1}, **greedy)
    yield _row("a token again with NaN", "repeated padding", [5, -1, 5], [0, NAN, NAN], {5: 1}, **greedy)
    yield _row("the first of equal scores", "greedy", [9, 3, 5], [0, 1, 1], {3: 1}, **greedy)
    yield _row("the first of equal scores has a larger id", "greedy", [9, 3, 5], [1, 1, 1], {9: 1}, **greedy)
    yield _row("zeros are equal", "greedy", [9, 3], [-0.0, 0.0], {9: 1}, **greedy)
    yield _row("a single candidate", "draw ratio", [63], [-3], {63: 1})
    for temperature in (-1, NAN):
        yield _row(f"temperature {temperature}", "greedy", [9, 3, 5], [0, 2, 1], {3: 1}, row_temperature=[temperature])
    most = list(range(32, 64))
    yield _row("thirty-two candidates", "greedy", most, [*[0.0] * 31, 1], {63: 1}, **greedy)


def _score(
    name: str, rules: str, other: float, best: int, before: list[float], hidden: list[float], after: list[float]
) -> Case:
    """Token 1, whose score is the product of these, beside token 2, whose score is `other`."""
    width = len(before)
    return edge(
        PATH, name, rules, {"path_tokens": [best]}, path_ids=[[1, 2]], path_logits=[[0, other]], path_hidden=[hidden],
        predecessor_codes=[before, [NAN] * width, [NAN] * width], successor_codes=[[NAN] * width, after, [0] * width],
        cu_seqlens_q_output=[0, 1], anchor_tokens=[0], row_temperature=[0], position=[0],
    )  # fmt: skip


def _scores() -> Iterator[Case]:
    ones = [1.0] * 10
    # Elements 0 and 8 are in one partial sum, where 1 is lost; one after the other, it is the result.
    yield _score("elements 0 and 8", "dot", 0.5, 2, ones, ones, [HUGE, -HUGE, *[0] * 6, 1, 0])
    yield _score("elements 0 and 4 first", "dot", 0.5, 1, ones[:8], ones[:8], [HUGE, 1, 0, 0, -HUGE, 0, 0, 0])
    yield _score("elements 0, 2, 4, 6 before the others", "dot", 0.5, 1, ones[:8], ones[:8],
                 [HUGE, 1, -HUGE, 0, 0, 0, 0, 0])  # fmt: skip
    yield _score("elements 1 and 5 before 3 and 7", "dot", 0.5, 2, ones[:8], ones[:8], [0, HUGE, 0, -HUGE, 0, 1, 0, 0])
    rounded = -(1 + 2.0**-11)
    first = [1.0, *[0.0] * 7]
    yield _score("products are rounded", "unfused dot", 2.0**-25, 2, [1, *first[1:], NEAR], ones[:9],
                 [rounded, *first[1:], NEAR])  # fmt: skip
    yield _score("products of three are rounded twice", "unfused", 2.0**-25, 2, [1, *first[1:], NEAR],
                 [1, *first[1:], NEAR], [rounded, *first[1:], 1])  # fmt: skip
    tiny = 2.0**-100
    yield _score("the previous token's code times the row comes first", "dot", 2.0**-90, 2, [tiny], [tiny], [2.0**120])
    yield _score("the sum is added to the logit", "dot", 3, 1, [2], [1], [2])
    wide = 300
    yield _score("a wide code", "dot", wide - 0.5, 1, [1.0] * wide, [1.0] * wide, [1.0] * wide)
    yield _score("a wide code, one less", "dot", wide - 0.5, 2, [1.0] * wide, [1.0] * wide, [*[1.0] * (wide - 1), 0])


def _filters() -> Iterator[Case]:
    halves = [3 * LN2, 2 * LN2, LN2, 0]  # masses of 8, 4, 2 and 1
    ids = [9, 3, 5, 1]
    filtered: tuple[tuple[str, str, dict[int, float], dict[str, Any]], ...] = (
        ("no filters", "ratio draw", {9: 8 / 15, 3: 4 / 15, 5: 2 / 15, 1: 1 / 15}, {}),
        ("top k of 2", "top-k", {9: 2 / 3, 3: 1 / 3}, {"row_top_k": [2]}),
        ("top k of 1", "top-k", {9: 1}, {"row_top_k": [1]}),
        ("top k beyond the candidates", "top-k", {9: 8 / 15, 3: 4 / 15, 5: 2 / 15, 1: 1 / 15}, {"row_top_k": [9]}),
        ("top k below 0", "top-k", {9: 8 / 15, 3: 4 / 15, 5: 2 / 15, 1: 1 / 15}, {"row_top_k": [-1]}),
        ("top p of 0.7", "top-p", {9: 2 / 3, 3: 1 / 3}, {"row_top_p": [0.7]}),
        ("top p of 0", "top-p", {9: 1}, {"row_top_p": [0]}),
        ("top p of NaN", "top-p", {9: 8 / 15, 3: 4 / 15, 5: 2 / 15, 1: 1 / 15}, {"row_top_p": [NAN]}),
        # The first has 8/15 of all, and 2/3 of what top k keeps.
        ("top p of what top k kept", "top-k top-p", {9: 1}, {"row_top_k": [2], "row_top_p": [0.6]}),
        ("min p of 0.4", "min-p", {9: 2 / 3, 3: 1 / 3}, {"row_min_p": [0.4]}),
        ("min p of NaN", "min-p", {9: 1}, {"row_min_p": [NAN]}),
        ("half the temperature", "ratio", {9: 64 / 85, 3: 16 / 85, 5: 4 / 85, 1: 1 / 85}, {"row_temperature": [0.5]}),
    )
    for name, rules, probs, params in filtered:
        yield _row(name, rules, ids, halves, probs, **params)
    yield _row("top k of equal scores", "top-k", [9, 3, 5], [0, 0, 0], {9: 0.5, 3: 0.5}, row_top_k=[2])
    yield _row("top p is inclusive", "top-p", [9, 3], [0, 0], {9: 1}, row_top_p=[0.5])
    yield _row("scores that do not descend", "top-k", [9, 3, 5], [0, 2, 1], {3: 1}, row_top_k=[1])
    yield _row("an infinite score", "maximum ratio", [9, 3, 5], [INF, 5, INF], {9: 0.5, 5: 0.5})
    yield _row(
        "the coldest temperature", "maximum", [9, 3, 5], [1, 1, 0.999], {9: 0.5, 3: 0.5}, row_temperature=[1e-45]
    )
    yield _row("a score of -inf", "forbidden", [9, 3], [0, -INF], {9: 1}, row_temperature=[3e38])


def _drawn(name: str, ids: list[int], tokens: list[int], **given: Any) -> Case:
    """Rows of the seed 5 at the positions 0, 1, ..., among equal scores; an offset and a slot for each row."""
    rows = len(tokens)
    return edge(
        PATH, name, "draw", {"path_tokens": tokens}, {"V": 64, "D": 1}, path_ids=[ids] * rows,
        **{
            "cu_seqlens_q_output": list(range(rows + 1)), "anchor_tokens": [0] * rows, "row_seed": [5] * rows,
            "position": list(range(rows)), **given,
        },
    )  # fmt: skip


def _draws() -> Iterator[Case]:
    # Of four equal masses, in ascending id order, the draw takes the two highest random bits.
    bits = {Purpose.SAMPLE: [0, 0, 2, 2, 0, 1, 2, 2], Purpose.DRAFT: [1, 2, 2, 2, 3, 0, 1, 0]}
    for purpose, chosen in bits.items():
        for ids in ([0, 1, 2, 3], [40, 9, 21, 3]):
            tokens = [sorted(ids)[i] for i in chosen]
            yield _drawn(f"candidates {ids}, {purpose.name}", ids, tokens, purpose=purpose)
    yield _drawn("rows of one slot", [3, 2, 1, 0], bits[Purpose.SAMPLE], cu_seqlens_q_output=[0, 8], anchor_tokens=[0])
    shifted = [5, 6, 7, 0, 1, 2, 3, 4]
    yield _drawn("the position decides", [0, 1, 2, 3], [bits[Purpose.SAMPLE][i] for i in shifted], position=shifted)


def _undefined() -> Iterator[Case]:
    for temperature in (0, 1):
        given: dict[str, Any] = {"row_temperature": [temperature]}
        shown = f"at temperature {temperature}"
        yield _row(f"only -inf {shown}", "undefined", [9, 3], [-INF, -INF], None, **given)
        yield _row(f"a NaN {shown}", "undefined", [9, 3], [5, NAN], None, **given)
        yield _row(f"no position {shown}", "undefined", [9, 3], [5, 0], None, position=[-1], **given)
    nothing: dict[str, Any] = {"path_logits": [[0, 0], [NAN, 0], [0, 0], [0, 0]]}
    yield _walk("a row without a draft ends its slot", "ended undefined", [2, -1, -1, 2], [0, 3, 4], [1, 1], **nothing)
    yield _walk("a row without a position ends its slot", "ended undefined", [2, -1, -1, 2], [0, 3, 4], [1, 1],
                position=[0, -1, 2, 3])  # fmt: skip
    yield _walk("a code that is no number", "undefined ended", [-1, -1], [0, 2], [1],
                predecessor_codes=[[0], [NAN], [1], [0]])  # fmt: skip
    yield _walk("infinities that cancel", "undefined", [-1, 1], [0, 1, 2], [1, 3],
                path_logits=[[INF, 0], [0, 0]], predecessor_codes=[[0], [-INF], [1], [0]])  # fmt: skip
    rows = [[0.0] * 4 for _ in range(3)]
    rows[0][2] = 1.0
    yield edge(
        PATH, "probabilities of rows without a draft", "ended tail elsewhere",
        {"path_tokens": [2, -1, -1], "probs": rows},
        path_logits=[[0, 0], [NAN, 0], [0, 0]], path_ids=[[1, 2]] * 3, path_hidden=[[1]] * 3, position=[0, 1, 2],
        row_temperature=[0] * 3, cu_seqlens_q_output=[0, 2], anchor_tokens=[1], probs=np.full((3, 4), 7, np.float32),
        **SWAP,
    )  # fmt: skip
