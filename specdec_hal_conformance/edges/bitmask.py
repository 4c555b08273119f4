"""Section 10: masks on logits and on drafts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from specdec_hal.ops.spec import FLOATS
from specdec_hal_conformance.building import logits
from specdec_hal_conformance.case import Case
from specdec_hal_conformance.edges.edge import edge

APPLY = "apply_token_bitmask"
TRUNCATE = "truncate_drafts"
INF = np.inf


def words(*tokens: int, count: int = 1) -> list[int]:
    """A mask of `count` words that allows these tokens."""
    bits = np.zeros(32 * count, np.uint8)
    bits[list(tokens)] = 1
    return [int(word) for word in np.packbits(bits, bitorder="little").view("<i4")]


def edges() -> Iterator[Case]:
    """Both ops."""
    yield from _logits()
    yield from _wide_logits()
    yield from _drafts()


def _logits() -> Iterator[Case]:
    row = [5.0, -3, 0, 7]
    for dtype in FLOATS:
        yield edge(
            APPLY, f"forbidden tokens of {dtype}", "bit forbidden allowed untouched unconstrained",
            {"logits": [[-INF, -3, -INF, 7], row, [5, -INF, -INF, -INF]]},
            logits=logits([row] * 3, dtype), bitmask=[words(0), words(1, 3)], bitmask_rows=[1, -1, 0],
        )  # fmt: skip
    kept = [3, INF, -INF, -0.0]
    yield edge(
        APPLY, "allowed logits keep their bits", "allowed", {"logits": [kept, [-INF, INF, -INF, -0.0]]},
        logits=logits([kept, kept]), bitmask=[words(0, 1, 2, 3), words(1, 2, 3)], bitmask_rows=[0, 1],
    )  # fmt: skip
    numbers = [-1, -(2**31), 2, 2**31 - 1]
    yield edge(
        APPLY, "numbers without a mask", "unconstrained", {"logits": [row] * 4 + [[-INF] * 4]},
        logits=logits([row] * 5), bitmask=[[0], [0]], bitmask_rows=[*numbers, 1],
    )  # fmt: skip
    yield edge(
        APPLY, "no masks at all", "unconstrained untouched", {"logits": [row]}, {"Y": 1, "U": 0},
        logits=logits([row]), bitmask_rows=[0],
    )  # fmt: skip
    yield edge(
        APPLY, "rows that share a mask", "shared", {"logits": [[-INF, -INF, 0, -INF]] * 3},
        logits=logits([row] * 3), bitmask=[words(1), words(2)], bitmask_rows=[1, 1, 1],
    )  # fmt: skip
    yield edge(
        APPLY, "nothing is allowed", "nothing-allowed forbidden", {"logits": [[-INF] * 4]},
        logits=logits([row]), bitmask=[[0]], bitmask_rows=[0],
    )  # fmt: skip
    for vocab_size, expected in ((0, [-INF] * 4), (2, [5, -3, -INF, -INF]), (3, [5, -3, 0, -INF]), (4, row)):
        yield edge(
            APPLY, f"a vocabulary of {vocab_size}", "beyond-vocabulary", {"logits": [expected]},
            logits=logits([row]), bitmask=[[-1]], bitmask_rows=[0], vocab_size=vocab_size,
        )  # fmt: skip
    for first, expected in ((1, [-INF, -3, -INF, 7]), (30, [-INF, -3, 0, -INF]), (40, [-INF, -INF, -INF, 7])):
        yield edge(
            APPLY, f"from token {first} on", "first-token bit beyond-words", {"logits": [expected]},
            logits=logits([row]), bitmask=[words(2, 4, 31, 32, 43, count=2)], bitmask_rows=[0], first_token=first,
        )  # fmt: skip
    yield edge(
        APPLY, "columns from after the mask on", "first-token beyond-words", {"logits": [[-INF] * 4]},
        logits=logits([row]), bitmask=[[-1]], bitmask_rows=[0], first_token=2**24 - 1,
    )  # fmt: skip
    yield edge(
        APPLY, "words that no column has", "bit", {"logits": [[-INF, -3, -INF, -INF]]},
        logits=logits([row]), bitmask=[[0, 0, 0], [words(1)[0], -1, -1]], bitmask_rows=[1],
    )  # fmt: skip


def _wide_logits() -> Iterator[Case]:
    """Rows of many words, which begin at odd places in memory and end inside a word."""
    for v in (31, 32, 33, 77, 1030):
        count = -(-v // 32)
        allowed = {token for token in range(v) if token % 3 == 1 or token % 32 in (0, 31)}
        for name, vocab_size, mask_words in (
            ("all", v, count), ("a smaller vocabulary", v - 1, count), ("one word", v, 1)
        ):  # fmt: skip
            kept = {token for token in allowed if token < min(vocab_size, 32 * mask_words)}
            values = np.arange(3 * v).reshape(3, v) % 1000
            yield edge(
                APPLY, f"{v} columns, {name}", "bit forbidden allowed beyond-vocabulary beyond-words",
                {"logits": [values[0].tolist(), *(_only(kept, row) for row in values[1:].tolist())]},
                logits=logits(values), bitmask=[words(*allowed, count=count)[:mask_words]],
                bitmask_rows=[-1, 0, 0], vocab_size=vocab_size,
            )  # fmt: skip


def _only(kept: Collection[int], row: Sequence[float]) -> list[float]:
    return [value if token in kept else -INF for token, value in enumerate(row)]


DRAFTS = [7, 3, 40, 5]
"""After the base token, which no mask is asked about."""


def truncated(name: str, rules: str, slt: int, then: int, masks: Sequence[int | None], **given: Any) -> Case:
    """A slot of `slt` tokens; masks allow the numbers given for rows 0, 1, ...; None: a row without a mask."""
    numbers = [-1 if mask is None else i for i, mask in enumerate(masks)]
    return edge(
        TRUNCATE, name, rules, {"seq_lens_this_time": [then]},
        **{
            "draft_tokens": [[9, *DRAFTS]], "seq_lens_this_time": [slt], "cu_seqlens_q_output": [0, slt],
            "bitmask": [words(mask or 0, count=2) for mask in masks], "bitmask_rows": numbers, **given,
        },
    )  # fmt: skip


def _drafts() -> Iterator[Case]:
    right: list[int | None] = [*DRAFTS, 0]
    yield truncated("all drafts are allowed", "kept bit", 5, 5, right)
    for i in range(4):
        wrong = [*right]
        wrong[i] = 8
        yield truncated(f"draft {i} is forbidden", "first cut", 5, i + 1, wrong)
    yield truncated("two drafts are forbidden", "first", 5, 3, [7, 3, 8, 8, 0])
    yield truncated("allowed drafts after one that is not", "first cut", 5, 2, [7, 8, 40, 5, 0])
    yield truncated("a forbidden token after the drafts", "kept", 3, 3, [7, 3, 8, 8, 0])
    yield truncated("the row of the last token asks about no draft", "kept", 5, 5, [7, 3, 40, 5, 8])
    yield truncated("no drafts", "kept", 1, 1, [8, 8, 8, 8, 8])
    yield truncated("rows without masks", "unconstrained kept", 5, 5, [None] * 5)
    yield truncated("a mask after rows without", "unconstrained first", 5, 4, [None, None, None, 8, 8])
    yield truncated("a mask before rows without", "unconstrained first", 5, 1, [8, None, None, None, None])
    for number in (5, 2**31 - 1, -(2**31)):
        yield truncated(
            f"a row's mask is number {number}", "unconstrained", 5, 3, [7, 8, 8, 8, 8],
            bitmask_rows=[0, number, 2, 3, 4],
        )  # fmt: skip
    for slt, then in ((0, 0), (-(2**31), -(2**31)), (9, 2)):
        yield truncated(
            f"{slt} tokens", "kept" if slt < 1 else "first", slt, then, [7, 8, 8, 8, 8], cu_seqlens_q_output=[0, 5]
        )
    yield truncated("more tokens than there are columns", "kept", 9, 9, right, cu_seqlens_q_output=[0, 5])
    for token in (-1, -(2**63), 64, 2**32 + 7, 2**63 - 1):
        yield truncated(
            f"token {token}", "no-token beyond-words", 5, 1, [7] * 5, draft_tokens=[[9, token, *DRAFTS[1:]]],
            bitmask=[[-1, -1]] * 5,
        )  # fmt: skip
    yield truncated("a token without a mask", "no-token unconstrained", 5, 5, [None] * 5, draft_tokens=[[-1] * 5])
    for vocab_size, then in ((41, 5), (40, 3), (7, 1), (0, 1)):
        yield truncated(f"a vocabulary of {vocab_size}", "beyond-vocabulary", 5, then, right, vocab_size=vocab_size)
    yield truncated("a prompt", "prefill", 5, 5, [8] * 5, seq_lens_encoder=[5])
    for first, masks, then in (
        (2, [8, 8, 7, 3, 8], 3),
        (-2, [40, 8, 8, 8, 8], 4),
        (7, [8] * 5, 9),
        (2**31 - 1, [8], 9),
    ):
        yield truncated(
            f"rows from {first} on", "row-range", 9, then, masks, cu_seqlens_q_output=[first, first]
        )  # fmt: skip
    yield edge(
        TRUNCATE, "each slot by its own rows", "first cut kept prefill padding",
        {"seq_lens_this_time": [2, 0, 1, 3, 4]},
        {"B": 5},
        draft_tokens=[[0, 1, 2, 3]] * 6, seq_lens_this_time=[4, 0, 1, 3, 4], seq_lens_encoder=[0, 0, 0, 3, -1, 0],
        cu_seqlens_q_output=[0, 4, 4, 5, 6, 10], bitmask=[words(1), words(2), words(3)],
        bitmask_rows=[0, 0, 1, 2, 0, 2, 0, 1, 2, 0],
    )  # fmt: skip
    many = 70
    yield edge(
        TRUNCATE, "seventy slots", "first cut", {"seq_lens_this_time": [b % 3 + 1 for b in range(many)]},
        draft_tokens=[[0, 1, 2]] * many, seq_lens_this_time=[3] * many,
        cu_seqlens_q_output=[3 * b for b in range(many + 1)], bitmask=[words(1), words(2), words(0)],
        bitmask_rows=[number for b in range(many) for number in ((2, 0, 0), (0, 2, 0), (0, 1, 2))[b % 3]],
    )  # fmt: skip
