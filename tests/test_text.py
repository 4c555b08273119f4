"""Text of bounded length: reprs that are cut while they are rendered, and messages that are never long."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_hal import errors
from specdec_hal.errors import ArgumentError, QueueFullError, SpecDecError
from specdec_hal.text import MESSAGE_LIMIT, clip, one_line, short
from tests.support.bounded import bounded

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary()
KEYS = st.integers() | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner) | st.dictionaries(KEYS, inner) | st.tuples(inner) | st.frozensets(KEYS) | st.sets(KEYS)
    ),
    max_leaves=20,
)


@given(VALUES)
def test_short_is_the_repr_or_its_beginning(value: object) -> None:
    whole, cut = one_line(repr(value)), short(value)
    assert len(cut) <= 80
    if cut != whole:
        assert cut.endswith("...") and len(repr(value)) > 80
        assert whole.startswith(one_line(cut[:-3]).rstrip("'\""))


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def doubled(levels: int) -> list[Any]:
    value: list[Any] = [1]
    for _ in range(levels):
        value = [value, value]
    return value


class Rude:
    def __repr__(self) -> str:
        raise ZeroDivisionError


HUGE = {
    "text": "x" * 50_000_000, "spaces": " " * 50_000_000, "bytes": b"x" * 50_000_000, "integer": 1 << 50_000_000,
    "list": [0] * 5_000_000, "bomb": doubled(64), "itself": endless(), "array": np.zeros((1000, 1000)),
}  # fmt: skip


@pytest.mark.parametrize("value", HUGE.values(), ids=HUGE)
def test_short_renders_no_more_than_it_shows(value: object) -> None:
    with bounded():
        assert len(short(value)) <= 80


def test_a_repr_that_raises() -> None:
    assert short(Rude()) == "<Rude whose repr raises ZeroDivisionError>"
    assert short([1, Rude()]) == "<list whose repr raises ZeroDivisionError>"


@given(st.text(st.characters(), max_size=4000), st.integers(40, 3000))
def test_clip(message: str, limit: int) -> None:
    cut = clip(message, limit)
    assert len(cut.encode()) <= limit
    whole = message.encode("utf-8", "backslashreplace").decode()
    if cut != whole:
        assert len(whole.encode()) > limit
        assert whole.startswith(cut.rpartition(" ... (")[0])


@given(st.text(st.characters(), max_size=200), st.integers(1, 200))
def test_no_message_is_longer_than_2_kb(piece: str, times: int) -> None:
    message = piece * times
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SpecDecError)]
    assert len(kinds) > 10
    for kind in kinds:
        error: SpecDecError
        if issubclass(kind, ArgumentError):
            error = kind(op=message, backend=message, argument="x", expected=message, got=message, hint=message)
        elif kind is QueueFullError:
            error = kind(message, retry_after_s=1)
        else:
            error = kind(message)
        assert len(str(error).encode()) <= MESSAGE_LIMIT
