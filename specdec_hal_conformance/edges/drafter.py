"""Section 11: blocks of tokens and masks, logits of another vocabulary, drafts that are doubted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from specdec_hal.ops.spec import FLOATS
from specdec_hal_conformance.building import logits
from specdec_hal_conformance.case import Case
from specdec_hal_conformance.edges.edge import edge

BLOCK = "prepare_block_inputs"
MAP = "map_draft_logits"
TRUNCATE = "truncate_by_confidence"
INF, NAN = np.inf, np.nan
MOST = 2**31 - 1
MASK = 9


def edges() -> Iterator[Case]:
    """The three ops."""
    yield from _blocks()
    yield from _logits()
    yield from _doubts()


def _block(
    name: str, rules: str, rows: list[tuple[int, int, int]], offsets: list[int], positions: list[int], **given: Any
) -> Case:
    """Tokens 20, 21, ... `rows`: token, slot and source; two rows of the tail follow, if F_cap is not given."""
    sizes = {"F_cap": given.pop("F_cap", len(rows) + 2)}
    rows = rows + [(0, -1, -1)] * (sizes["F_cap"] - len(rows))
    ids, slots, sources = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    return edge(
        BLOCK, name, rules,
        {
            "block_token_ids": ids, "block_batch_ids": slots, "block_source_rows": sources,
            "block_cu_seqlens_q": offsets, "block_seq_lens_decoder": positions,
        },
        sizes, **{"ids_remove_padding": [20, 21, 22, 23], "mask_token_id": MASK, "num_masks": 2, **given},
    )  # fmt: skip


def _blocks() -> Iterator[Case]:
    given: dict[str, Any] = {"cu_seqlens_q": [0, 3, 3, 4], "seq_lens_decoder": [5, 6, 0]}
    masks = [[(MASK, b, -1)] * 2 for b in range(3)]
    whole = [(20, 0, 0), (21, 0, 1), (22, 0, 2), *masks[0], (23, 2, 3), *masks[2]]
    last = [(22, 0, 2), *masks[0], (23, 2, 3), *masks[2]]
    yield _block("all tokens", "rows source mask idle offsets position tails", whole, [0, 5, 5, 8], [5, 6, 0], **given)
    yield _block(
        "the last token alone", "anchor source mask idle offsets position tails", last, [0, 3, 3, 6], [8, 6, 1],
        anchor_only=True, **given,
    )  # fmt: skip
    yield _block(
        "no masks", "rows source", [(20 + r, b, r) for r, b in enumerate([0, 0, 0, 2])], [0, 3, 3, 4], [5, 6, 0],
        **given, num_masks=0,
    )  # fmt: skip
    for room in (6, 1, 0):
        yield _block(
            f"room for {room} rows", "overflow offsets", whole[:room], [0, 5, 5, 8], [5, 6, 0], F_cap=room, **given
        )
    yield _block(
        "no slot is fed", "idle tails", [], [0, 0, 0], [3, 0], cu_seqlens_q=[0, 0, 0], seq_lens_decoder=[3, -2]
    )
    yield _block("no slots", "tails offsets", [], [0], [], cu_seqlens_q=[0], seq_lens_decoder=[0])
    yield _block(
        "slots that are padding", "rows", whole[:5], [0, 5], [5], cu_seqlens_q=[0, 3], seq_lens_decoder=[5, 6, 0]
    )
    beyond: dict[str, Any] = {"cu_seqlens_q": [2, 5], "seq_lens_decoder": [1]}
    yield _block(
        "tokens that there are not", "capacity", [(22, 0, 2), (23, 0, 3), (MASK, 0, -1), *masks[0]], [0, 5], [1],
        **beyond,
    )  # fmt: skip
    yield _block("a last token that there is not", "capacity", [(MASK, 0, -1), *masks[0]], [0, 3], [4],
                 anchor_only=True, **beyond)  # fmt: skip
    yield _block(
        "offsets that descend", "clamp idle", [(23, 1, 3), *masks[1]], [0, 0, 3], [0, 0], cu_seqlens_q=[5, 3, 4],
        seq_lens_decoder=[-1, 0],
    )  # fmt: skip
    wild: dict[str, Any] = {"cu_seqlens_q": [-(2**31), MOST], "seq_lens_decoder": [MOST - 1]}
    yield _block(
        "wild offsets", "clamp capacity", [(MASK, 0, -1)] * 6, [0, 6], [MOST - 1], **wild
    )  # fmt: skip
    yield _block(
        "positions that saturate", "clamp capacity saturate position", [(MASK, 0, -1)] * 3, [0, 3], [MOST],
        anchor_only=True, **wild,
    )  # fmt: skip
    many = 300
    lengths = [b % 3 for b in range(many)]
    starts = np.cumsum([0, *lengths])
    fed = [b for b in range(many) if b % 3]
    rows = [row for b in fed for row in [(int(starts[b + 1]) - 1, b, int(starts[b + 1]) - 1), (MASK, b, -1)]]
    yield _block(
        "three hundred slots", "anchor offsets", rows, np.cumsum([0, *(2 * (n > 0) for n in lengths)]).tolist(),
        lengths, ids_remove_padding=list(range(many)), cu_seqlens_q=starts.tolist(), seq_lens_decoder=[0] * many,
        num_masks=1, anchor_only=True,
    )  # fmt: skip


def _logits() -> Iterator[Case]:
    for dtype in FLOATS:
        yield edge(
            MAP, f"a part of the vocabulary, {dtype}", "mapped lacking",
            {"logits": [[-INF, 5, -INF, -3, 7], [-INF, 1, -INF, -INF, 2]]},
            own_logits=logits([[5, -3, 7], [1, -INF, 2]], dtype), target_to_draft=[-1, 0, -1, 1, 2],
            logits=logits(np.full((2, 5), 4), dtype),
        )  # fmt: skip
    yield edge(
        MAP, "in any order, and twice", "mapped shared", {"logits": [[7, -0.0, 7, INF]]},
        own_logits=logits([[-0.0, INF, 7]]), target_to_draft=[2, 0, 2, 1],
    )  # fmt: skip
    yield edge(
        MAP, "columns that there are not", "lacking", {"logits": [[-INF, -INF, -INF, 7]]},
        own_logits=logits([[5, 7]]), target_to_draft=[2, MOST, -(2**31), 1],
    )  # fmt: skip
    v = 5000
    rows = np.arange(3 * v, dtype=np.float32).reshape(3, v)
    yield edge(
        MAP, "many tokens", "mapped lacking",
        {"logits": np.stack([rows[:, ::-1], np.full((3, v), -INF)], 2).reshape(3, 2 * v).astype(np.float32)},
        own_logits=rows, target_to_draft=np.stack([np.arange(v)[::-1], np.full(v, -1)], 1).ravel().astype(np.int32),
    )  # fmt: skip


def _trust(name: str, rules: str, slt: int, then: int, *confidence: float, least: float = 0.25, **given: Any) -> Case:
    """A slot of `slt` tokens."""
    return edge(
        TRUNCATE, name, rules, {"seq_lens_this_time": [then]}, draft_confidence=np.array([confidence], np.float32),
        min_confidence=[least], seq_lens_this_time=[slt], **given,
    )  # fmt: skip


def _doubts() -> Iterator[Case]:
    yield _trust("all are trusted", "kept product", 4, 4, 1, 0.5, 0.5)
    yield _trust("the last is doubted", "cut product", 4, 3, 1, 0.5, 0.25)
    yield _trust("the first is doubted", "cut", 4, 1, 0.125, 1, 1)
    yield _trust("together they are doubted", "product cut", 4, 2, 0.75, 0.25, 1, least=0.2)
    yield _trust("one that was not drafted is doubted", "kept", 3, 3, 0.5, 0.5, 0)
    yield _trust("a doubted one after which none is", "cut", 4, 2, 0.5, 0.125, 1e9)
    yield _trust("no drafts", "kept", 1, 1, 0, 0, 0)
    yield _trust("idle", "kept", 0, 0, 0, 0, 0)
    yield _trust("no columns", "kept", 9, 9)
    for slt, then in ((9, 9), (MOST, MOST), (-(2**31), -(2**31))):
        yield _trust(f"{slt} tokens", "kept", slt, then, 1, 1, 1)
    yield _trust("more tokens than columns, one doubted", "cut", 9, 2, 1, 0, 1)
    yield _trust("never", "kept", 4, 4, 0, 0, 0, least=0)
    yield _trust("always", "cut", 4, 1, 1, 1, 1, least=2)
    yield _trust("confidence that is no number", "nan kept", 4, 4, NAN, 0, 0)
    yield _trust("no number after a doubted one", "nan cut", 4, 2, 1, 0.125, NAN)
    yield _trust("a limit that is no number", "nan kept", 4, 4, 0, 0, 0, least=NAN)
    third = float(np.float32(1 / 3))
    exact = float(np.multiply.reduce(np.full(3, third, np.float32)))
    for least, then in ((exact, 4), (float(np.nextafter(np.float32(exact), np.float32(1))), 3)):
        yield _trust(f"at the limit, {then - 1} kept", "product", 4, then, third, third, third, least=least)
    small = 2.0**-100
    yield _trust("a product that is 0", "product cut", 4, 2, small, small, 1, least=2.0**-149)
    yield _trust("a product that is denormal", "product kept", 4, 4, small, 2.0**-49, 1, least=2.0**-149)
    yield _trust("a prompt", "prefill", 4, 4, 0, 0, 0, seq_lens_encoder=[4])
    yield edge(
        TRUNCATE, "each slot by its own", "cut kept prefill padding", {"seq_lens_this_time": [2, 3, 3, 0]}, {"B": 4},
        draft_confidence=[[0.5, 0.25], [0.5, 0.5], [0, 0], [0, 0], [0, 0]], min_confidence=[0.25] * 5,
        seq_lens_encoder=[0, -1, 3, 0, 0], seq_lens_this_time=[3, 3, 3, 0],
    )  # fmt: skip
    many = 300
    yield edge(
        TRUNCATE, "three hundred slots", "cut", {"seq_lens_this_time": [b % 3 + 1 for b in range(many)]},
        draft_confidence=[[b % 3 > 0, b % 3 > 1] for b in range(many)], min_confidence=[0.5] * many,
        seq_lens_this_time=[3] * many,
    )  # fmt: skip
