"""The codec: what goes in comes out, in order; what is wrong is refused whole."""

from __future__ import annotations

import struct
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_hal.errors import FrameError
from specdec_hal.output import FrameKind, FrameReader, OutputFrame

counts = st.lists(st.integers(-10, 4).map(lambda c: c if c >= 0 else -9 if c < -5 else -3), max_size=6)


def make(slot_counts: list[int], n: int = 2, seed: int = 0, flags: int = FrameKind.TARGET) -> OutputFrame:
    rng = np.random.default_rng(seed)
    total = sum(c for c in slot_counts if c > 0)
    return OutputFrame(
        flags,
        4,
        np.array(slot_counts, np.int32),
        rng.integers(-(2**62), 2**62, (total, n)),
        rng.normal(size=(total, n)).astype(np.float32),
        rng.integers(1, 2**40, total),
    )


def assert_equal(a: OutputFrame, b: OutputFrame) -> None:
    assert (a.flags, a.max_tokens) == (b.flags, b.max_tokens)
    for name in ("counts", "ids", "scores", "ranks"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


@given(slot_counts=counts, n=st.integers(1, 4), flags=st.integers(0, 255))
def test_round_trip(slot_counts: list[int], n: int, flags: int) -> None:
    frame = make(slot_counts, n, flags=flags)
    assert_equal(OutputFrame.decode(frame.encode()), frame)


@given(frames=st.lists(counts, min_size=1, max_size=5), cuts=st.lists(st.integers(0, 400), max_size=12))
def test_a_stream_in_any_pieces_gives_the_same_frames_in_order(frames: list[list[int]], cuts: list[int]) -> None:
    sent = [make(c, seed=i) for i, c in enumerate(frames)]
    stream = b"".join(frame.encode() for frame in sent)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    reader = FrameReader()
    received = [f for a, b in pairwise(edges) for f in reader.feed(stream[a:b])]
    assert len(received) == len(sent)
    assert reader.pending == 0
    for got, expected in zip(received, sent, strict=True):
        assert_equal(got, expected)


@given(slot_counts=counts, cut=st.integers(1, 500))
def test_a_truncated_frame_is_never_a_frame(slot_counts: list[int], cut: int) -> None:
    data = make(slot_counts).encode()
    with pytest.raises(FrameError, match="expected exactly one frame"):
        OutputFrame.decode(data[: max(len(data) - cut, 0)])
    assert FrameReader().feed(data[: max(len(data) - cut, 0)]) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"flags": 256}, "flags: expected 8 bits, got 256"),
        ({"flags": -1}, "flags: expected 8 bits, got -1"),
        ({"ids": np.zeros((3, 0), np.int64), "scores": np.zeros((3, 0), np.float32)}, "N: expected at least 1"),
        ({"counts": np.array([5], np.int32)}, "count: expected 0..4, -3 or -9, got 5"),
        ({"counts": np.array([-1], np.int32)}, "count: expected 0..4, -3 or -9, got -1"),
        ({"max_tokens": 0}, "S: expected at least 1"),
        ({"ids": np.zeros((2, 2), np.int64)}, r"ids: expected int64 \[3, 2\], got int64 \[2, 2\]"),
        ({"scores": np.zeros((3, 2))}, r"scores: expected float32 \[3, 2\], got float64"),
        ({"ranks": np.zeros(4, np.int64)}, r"ranks: expected int64 \[3\], got int64 \[4\]"),
    ],
)
def test_encoding_refuses(change: dict[str, object], message: str) -> None:
    fields = {**vars(make([1, 0, 2])), **change}
    with pytest.raises(FrameError, match=message):
        OutputFrame(**fields).encode()


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (4, b"XXXX", "this is no output frame"),
        (8, struct.pack("<H", 2), "version: expected 1, got 2"),
        (11, b"\1", "this is no output frame"),
        (0, struct.pack("<I", 10**9), "length: expected"),
        (0, struct.pack("<I", 3), "length: expected"),
        (16, struct.pack("<I", 0), "N: expected at least 1"),
        (24, struct.pack("<i", 3), "length: expected .* for 5 tokens"),
        (24, struct.pack("<i", 77), "count: expected"),
    ],
)
def test_decoding_refuses(offset: int, value: bytes, message: str) -> None:
    data = bytearray(make([1, 0, 2]).encode())
    data[offset : offset + len(value)] = value
    with pytest.raises(FrameError, match=message):
        OutputFrame.decode(bytes(data))


def test_good_frames_before_a_bad_one_are_delivered_and_nothing_after_it() -> None:
    good, bad = make([1, 2]).encode(), b"\0" * 40
    reader = FrameReader()
    assert len(reader.feed(good + bad + good)) == 1
    with pytest.raises(FrameError, match="the stream has failed before"):
        reader.feed(good)
