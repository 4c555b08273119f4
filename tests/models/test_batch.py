"""Checks of batches, and their division into blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_hal.errors import ArgumentError
from specdec_hal.models.batch import Limits, blocks
from specdec_hal.plugin.model import ForwardBatch, Segment

LIMITS = Limits("paddle", vocab_size=10, max_num_seqs=3, max_model_len=8)


def test_good_batches() -> None:
    ids = LIMITS.check(ForwardBatch(np.array([9, 0, 3, 4], np.int32), [Segment(2, 0, 3, 5), Segment(0, 3, 1, 0)]))
    assert ids.dtype == np.int64 and ids.tolist() == [9, 0, 3, 4]
    assert LIMITS.check(ForwardBatch(np.zeros(0, np.int64), [])).shape == (0,)


@pytest.mark.parametrize(
    ("ids", "segments", "message"),
    [
        ([1, 10], [(0, 0, 2, 0)], r"argument 'token_ids': expected token ids in 0..9, got 10 at 1; "),
        ([-1, 1], [(0, 0, 2, 0)], r"got -1 at 0; pass no padding"),
        ([[1, 2]], [(0, 0, 2, 0)], r"expected int64 \[T\], got int64 \[1, 2\]"),
        ([1.0], [(0, 0, 1, 0)], r"expected int64 \[T\], got float64 \[1\]"),
        ([1, 2], [(3, 0, 2, 0)], r"'segments\[0\].slot': expected 0..2, got 3; allocate\(\) more slots"),
        ([1, 2], [(-1, 0, 2, 0)], r"'segments\[0\].slot': expected 0..2, got -1"),
        ([1, 2], [(0, 0, 1, 0), (0, 1, 1, 1)], r"'segments\[1\].slot': expected a slot that is not in this batch yet"),
        ([1, 2], [(0, 0, 2, 7)], r"'segments\[0\]': expected positions in 0..7, got positions 7..8"),
        ([1, 2], [(0, 0, 2, -1)], r"expected positions in 0..7, got positions -1..0"),
        ([1, 2], [(0, 0, 1, 0)], r"'segments': expected 2 tokens, as in token_ids, got 1"),
        ([1, 2], [], r"expected 2 tokens, as in token_ids, got 0"),
        ([1, 2], [(0, 0, 3, 0)], r"expected 2 tokens, as in token_ids, got 3"),
        ([1, 2], [(0, 1, 1, 0)], r"'segments\[0\]': expected start 0 and length >= 1, got start 1, length 1"),
        ([1, 2], [(0, 0, 1, 0), (1, 0, 1, 0)], r"'segments\[1\]': expected start 1"),
        ([1, 2], [(0, 0, 2, 0), (1, 2, 0, 0)], r"got start 2, length 0; let segments tile the tokens in order"),
    ],
)
def test_bad_batches(ids: list[int], segments: list[tuple[int, int, int, int]], message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as caught:
        LIMITS.check(ForwardBatch(np.array(ids), [Segment(*segment) for segment in segments]))
    assert str(caught.value).startswith("forward [paddle]: argument '")


@given(st.lists(st.integers(1, 40), max_size=6), st.integers(1, 30))
def test_blocks_are_the_batch_in_order(lengths: list[int], limit: int) -> None:
    starts = np.cumsum([0, *lengths]).tolist()
    segments = [
        Segment(slot, start, length, 100 * slot)
        for slot, (start, length) in enumerate(zip(starts, lengths, strict=False))
    ]
    groups = list(blocks(segments, limit))
    sizes = [sum(piece.length for piece in group) for group in groups]
    assert all(size == limit for size in sizes[:-1]) and all(0 < size <= limit for size in sizes)
    pieces = [piece for group in groups for piece in group]
    end = 0
    for piece in pieces:
        whole = segments[piece.slot]
        assert piece.start == end and piece.position - whole.position == piece.start - whole.start
        end += piece.length
    assert end == starts[-1]


def test_blocks_with_segments_that_stay_whole() -> None:
    """Drafts that may be rejected together are not split; longer chunks of prompts are."""
    segments = [Segment(0, 0, 4, 7), Segment(1, 4, 3, 0), Segment(2, 7, 9, 2)]
    parts = [[(one.slot, one.start, one.length) for one in group] for group in blocks(segments, 6, whole=4)]
    assert parts == [[(0, 0, 4)], [(1, 4, 3), (2, 7, 3)], [(2, 10, 6)]]
