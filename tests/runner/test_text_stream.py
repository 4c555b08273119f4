"""Stop strings: cut off exactly, never shown in part, found wherever tokens happen to end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specdec_hal.runner.stream import TextStream


class Pieces:
    """A detokenizer whose token i is the i-th piece."""

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = pieces

    def push(self, token_id: int) -> str:
        return self.pieces[token_id]

    def finish(self) -> str:
        return ""


@given(
    pieces=st.lists(st.text("abc", max_size=4), max_size=12),
    stop=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    release_every=st.integers(1, 3),
)
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
            assert not any(s in shown for s in stop)
    stream.finish()
    shown += "".join(text for text, _ in stream.release(True))

    whole = "".join(pieces[:consumed])
    first = min((whole.find(s) for s in stop if s in whole), default=len(whole))
    assert stream.text == shown == whole[:first]
    if consumed < len(pieces):
        assert any(s in whole for s in stop)
        assert not any(s in "".join(pieces[: consumed - 1]) for s in stop)


def test_flags_stay_with_their_characters() -> None:
    stream = TextStream(Pieces(["ab", "cd", "ef"]), ["xyz"])
    for token in range(3):
        stream.push(token, token == 1)
    assert stream.release(False) == (("ab", False), ("cd", True))
    stream.finish()
    assert stream.release(True) == (("ef", False),)
