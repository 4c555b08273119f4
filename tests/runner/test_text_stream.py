"""Stop strings: cut off exactly, never shown in part, found wherever tokens happen to end."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specdec_hal.runner.stream import TextStream


@given(
    pieces=st.lists(st.text("ab", max_size=3), min_size=1, max_size=10),
    stop=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    held_for=st.integers(0, 10),
    include=st.booleans(),
)
@example(pieces=["aba", "ba"], stop=["aba"], held_for=2, include=False)
def test_stop_strings_that_may_not_stop_yet(pieces: list[str], stop: list[str], held_for: int, include: bool) -> None:
    stream, shown = TextStream(Pieces(pieces), stop, include), ""
    for token in range(len(pieces)):
        if stream.push(token, False, may_stop=token + 1 >= held_for):
            break
        shown += "".join(text for text, _ in stream.release(False))
    else:
        token = len(pieces)
    stream.finish()
    shown += "".join(text for text, _ in stream.release(True))

    expected, stopped_at, text = "".join(pieces), len(pieces), ""
    for at, piece in enumerate(pieces):
        before, text = len(text), text + piece
        ends = [(n - len(s), n) for s in stop for n in range(before + 1, len(text) + 1) if text[:n].endswith(s)]
        # Of each stop string, the first end in the piece counts.
        first = {text[start:end]: (start, end) for start, end in reversed(ends)}.values()
        if ends and at + 1 >= held_for:
            start, end = min(first)
            expected, stopped_at = text[: end if include else start], at
            break
    assert (stream.text, shown, token) == (expected, expected, stopped_at)


class Pieces:
    """A detokenizer whose token i is the i-th piece."""

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = pieces

    def push(self, token_id: int) -> str:
        return self.pieces[token_id]

    def finish(self) -> str:
        return ""


def begun(text: str, stop: list[str]) -> int:
    """How many characters the text ends with that may be the beginning of a stop string."""
    return max((n for s in stop for n in range(len(s)) if text.endswith(s[:n])), default=0)


@given(
    pieces=st.lists(st.text("abc", max_size=4), max_size=12),
    stop=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    release_every=st.integers(1, 3),
)
@example(pieces=["ab", "ab", "ac"], stop=["ababac", "abac"], release_every=1)
@example(pieces=["aa", "ab"], stop=["aab"], release_every=1)
@example(pieces=["aabaaa", "baaac"], stop=["aabaaac"], release_every=1)
@example(pieces=["ab", "aba", "bac"], stop=["ababac"], release_every=1)
def test_against_the_whole_text(pieces: list[str], stop: list[str], release_every: int) -> None:
    stream = TextStream(Pieces(pieces), stop)
    shown = ""
    consumed = 0
    for token in range(len(pieces)):
        consumed += 1
        stopped = stream.push(token, token % 2 == 0)
        if stopped:
            break
        if token % release_every == 0:
            shown += "".join(text for text, _ in stream.release(False))
            text = "".join(pieces[: token + 1])
            assert shown == text[: len(text) - begun(text, stop)]
    stream.finish()
    shown += "".join(text for text, _ in stream.release(True))

    whole = "".join(pieces[:consumed])
    first = min((whole.find(s) for s in stop if s in whole), default=len(whole))
    assert stream.text == shown == whole[:first]
    if consumed < len(pieces):
        assert any(s in whole for s in stop)
        assert not any(s in "".join(pieces[: consumed - 1]) for s in stop)


def test_flags_stay_with_their_characters() -> None:
    stream = TextStream(Pieces(["ab", "cd", "ef"]), ["defg"])
    for token in range(3):
        stream.push(token, token == 1)
    assert stream.release(False) == (("ab", False), ("c", True))
    stream.finish()
    assert stream.release(True) == (("d", True), ("ef", False))


def test_a_long_stop_string_holds_back_only_its_beginning() -> None:
    """Of 200 characters, 199 were held back."""
    words = [f"word {n} " for n in range(100)]
    stream = TextStream(Pieces([*words, "wor", "se"]), ["w" + "x" * 199])
    for token in range(100):
        assert not stream.push(token, False)
        assert stream.release(False) == ((words[token], False),)
    stream.push(100, False)
    assert stream.release(False) == (("wor", False),)


class Bytes:
    """A detokenizer with an incomplete character at its end."""

    def push(self, token_id: int) -> str:
        return "a\nb"

    def finish(self) -> str:
        return "\N{REPLACEMENT CHARACTER}"


def test_nothing_comes_after_a_stop_string() -> None:
    stream = TextStream(Bytes(), ["\n"])
    assert stream.push(0, False)
    stream.finish()
    assert stream.release(True) == (("a", False),) and stream.text == "a"


@pytest.mark.parametrize("letter", ["a", "b"])
def test_a_long_stop_string_that_nearly_comes(letter: str) -> None:
    """Quadratic time would be minutes."""
    stream = TextStream(Pieces(["a", letter]), ["a" * 20_000 + "c"])
    for token in range(40_000):
        assert not stream.push(token % 2, False)
        stream.release(False)
    stream.finish()
    assert len(stream.text) == 40_000
