"""Frames: what goes in comes out, in order; what is wrong is refused whole, and named."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_hal.errors import FrameError
from specdec_hal.runner import TokenLogprobs
from specdec_hal.serve.stream import FrameKind, FrameReader, OutputFrame, frame
from specdec_hal.serve.stream.frame import PromptScores, StreamEnd, StreamStart

counts = st.lists(st.integers(-10, 4).map(lambda c: c if c >= 0 else -9 if c < -5 else -3), max_size=6)


def make(entries: list[int], n: int = 2, sequence: int = 0, session: int = 7, **more: Any) -> OutputFrame:
    rng = np.random.default_rng(len(entries))
    total = sum(c for c in entries if c > 0)
    fields: dict[str, Any] = {
        "session": session, "sequence": sequence, "flags": FrameKind.TARGET, "n": n, "max_tokens": 4,
        "numbers": list(range(len(entries))), "starts": [0] * len(entries), "counts": entries,
        "drafted": [-1] * len(entries), "accepted_draft": rng.integers(0, 2, total, np.uint8).tobytes(),
        "ids": rng.integers(-(2**62), 2**62, (total, n)).data, "scores": rng.normal(size=(total, n)).astype("<f4").data,
        "ranks": rng.integers(1, 2**40, total).data,
    }  # fmt: skip
    return OutputFrame(**{**fields, **more})


def plain(frame: OutputFrame) -> dict[str, Any]:
    """With buffers as bytes, which compare by what they hold."""
    fields = msgspec.structs.asdict(frame)
    return {name: bytes(value) if isinstance(value, memoryview) else value for name, value in fields.items()}


@given(entries=counts, n=st.integers(1, 4), flags=st.integers(0, 255))
def test_round_trip(entries: list[int], n: int, flags: int) -> None:
    scores = [TokenLogprobs(-0.5, 1, ((3, -0.5), (4, float("-inf"))))]
    had: Any = [3], [True], scores, (1, 2, 3, 1), [None]
    start = StreamStart(9, "näme", 3, 5, {"stop": ["x"], "temperature": 0.5}, 0.25, *had)
    told = {"streams": [start], "ended": [StreamEnd(9, "error", "why")], "released": [4]}
    sent = make(entries, n, flags=flags, prompts=[PromptScores(9, 1, scores)], **told)
    assert plain(OutputFrame.decode(sent.encode())) == plain(sent)


def test_without_log_probabilities_a_token_is_one_id_and_nothing_else() -> None:
    bare = {"scores": frame.NOTHING, "ranks": frame.NOTHING}
    one, many = (len(make([count] * 4, 1, **bare).encode()) for count in (1, 4))
    assert many - one == 12 * (8 + 1), "an id and a flag for each of 12 more tokens"
    received = OutputFrame.decode(make([2, 1], 1, **bare).encode())
    assert received.logprobs(slice(0, 3), 2) == [] and len(received.emitted) == 3


@given(entries=counts, at=st.integers(0, 500), data=st.data())
def test_bytes_that_were_cut_or_changed_give_a_frame_or_an_error_that_says_so(
    entries: list[int], at: int, data: st.DataObject
) -> None:
    sent = make(entries).encode()
    with pytest.raises(FrameError, match="expected an output frame"):
        OutputFrame.decode(sent[: min(at, len(sent) - 1)])
    with pytest.raises(FrameError, match="expected an output frame"):
        OutputFrame.decode(sent + b"\0")
    changed = bytearray(sent)
    changed[at % len(sent)] = data.draw(st.integers(0, 255))
    try:
        received = OutputFrame.decode(bytes(changed))
    except FrameError:
        return
    assert len(received.emitted) == sum(c for c in received.counts if c > 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"flags": 256}, "flags: expected 8 bits, got 256"),
        ({"flags": -1}, "flags: expected 8 bits, got -1"),
        ({"n": 0}, "N: expected at least 1"),
        ({"max_tokens": 0}, "S: expected at least 1"),
        ({"counts": [5, 0, 2]}, "count: expected 0..4, -3 or -9, got 5"),
        ({"counts": [1, -1, 2]}, "count: expected 0..4, -3 or -9, got -1"),
        ({"counts": [1, 2]}, "counts: expected one for each of 3 entries, got 2"),
        ({"starts": []}, "starts: expected one for each of 3 entries, got 0"),
        ({"ids": np.zeros((2, 2), np.int64).data}, "ids: expected 48 bytes for 3 tokens and N = 2, got 32"),
        ({"scores": np.zeros((3, 2)).data}, "scores: expected 24 bytes for 3 tokens and N = 2, got 48"),
        ({"ranks": np.zeros(4, np.int64).data}, "ranks: expected 24 bytes"),
        ({"ranks": frame.NOTHING}, "scores: expected 0 bytes"),
        ({"accepted_draft": b""}, "accepted_draft: expected 3 bytes"),
    ],
)
def test_fields_that_disagree_are_refused_at_both_ends(change: dict[str, Any], message: str) -> None:
    wrong = make([1, 0, 2], **change)
    with pytest.raises(FrameError, match=message):
        wrong.encode()
    with pytest.raises(FrameError, match=message):
        OutputFrame.decode(msgspec.msgpack.encode(wrong))


@pytest.mark.parametrize("data", [b"", b"\x93\x01\x02\x03", b"GET / HTTP/1.1", msgspec.msgpack.encode({"session": 1})])
def test_what_is_no_frame(data: bytes) -> None:
    with pytest.raises(FrameError, match=f"expected an output frame of version 4, got {len(data)} bytes that are not"):
        OutputFrame.decode(data)


def test_another_version_is_foreign() -> None:
    other = make([1]).encode().replace(b"output 4", b"output 3")
    with pytest.raises(FrameError, match="Invalid value 'specdec_hal output 3'"):
        OutputFrame.decode(other)


def test_a_frame_that_no_reader_takes_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = make([1, 0, 2]).encode()
    monkeypatch.setattr(frame, "MAX_FRAME_BYTES", 100)
    for call in (make([1, 0, 2]).encode, lambda: OutputFrame.decode(sent)):
        with pytest.raises(FrameError, match=f"length: expected at most 100 bytes, got {len(sent)}"):
            call()


# ---- order


@dataclass
class Wire:
    """A session's frames as bytes."""

    session: int
    sent: list[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.sent = [make([1], sequence=at, session=self.session).encode() for at in range(5)]


def test_a_session_in_order_and_another_after_it() -> None:
    reader = FrameReader()
    for session in (7, 8):
        for at, data in enumerate(Wire(session).sent):
            received = reader.feed(data)
            assert received is not None and (received.session, received.sequence) == (session, at)
    assert reader.stale == 0


def test_frames_before_the_first_beginning_are_stale() -> None:
    reader, old, new = FrameReader(), Wire(7).sent, Wire(8).sent
    assert [reader.feed(data) for data in old[2:]] == [None] * 3 and reader.stale == 3
    assert reader.feed(new[0]) is not None


ORDERS = [order for order in itertools.product(range(4), repeat=3) if order != (1, 2, 3) and 0 not in order]


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_a_gap_a_repetition_and_a_reordering_are_named(order: tuple[int, ...]) -> None:
    reader, sent = FrameReader(), Wire(7).sent
    reader.feed(sent[0])
    wrong = next(at for at, number in enumerate(order) if number != at + 1)
    for number in order[:wrong]:
        reader.feed(sent[number])
    kind = "frames are missing" if order[wrong] > wrong + 1 else "a frame came late or twice"
    with pytest.raises(FrameError, match=f"expected frame {wrong + 1}, got {order[wrong]}: {kind}"):
        reader.feed(sent[order[wrong]])
    assert reader.feed(sent[wrong + 1]) is None, "what follows an error is not to be trusted"
    assert reader.feed(Wire(8).sent[0]) is not None


@pytest.mark.parametrize("wrong", [Wire(9).sent[1], b"nothing", Wire(7).sent[1][:-1]])
def test_a_foreign_or_truncated_frame_ends_the_session(wrong: bytes) -> None:
    reader, sent = FrameReader(), Wire(7).sent
    reader.feed(sent[0])
    with pytest.raises(FrameError, match=r"session: expected 7, got 9|expected an output frame"):
        reader.feed(wrong)
    assert reader.feed(sent[1]) is None and reader.feed(sent[0]) is not None
