"""Messages: values and exceptions as bounded text, and "did you mean"."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

MESSAGE_LIMIT = 2048
"""Most bytes of an error message, in UTF-8."""

_BRACKETS: dict[Any, tuple[str, str]] = {
    list.__repr__: ("[", "]"),
    tuple.__repr__: ("(", ")"),
    set.__repr__: ("{", "}"),
    frozenset.__repr__: ("frozenset({", "})"),
    dict.__repr__: ("{", "}"),
}


def one_line(text: object) -> str:
    """Any message on one line."""
    return " ".join(str(text).split())


def describe(error: BaseException) -> str:
    """An exception's type and text on one line."""
    return f"{type(error).__name__}: {one_line(error)}".removesuffix(": ")


def clip(message: str, limit: int = MESSAGE_LIMIT) -> str:
    """A message cut to `limit` bytes, with a note of its full size; lone surrogates become escapes."""
    data = message.encode("utf-8", "backslashreplace")
    if len(data) <= limit:
        return data.decode("utf-8")
    note = f" ... ({len(data)} bytes in all)"
    return data[: limit - len(note)].decode("utf-8", "ignore") + note


def short(value: object, limit: int = 80) -> str:
    """The repr of a value on one line, cut to `limit` characters, without rendering more of containers."""
    if type(value) is str and len(value) < limit // 2 and value.isprintable():
        return repr(value)  # of which it may have to escape quotes and backslashes
    text, cut = "", False
    try:
        for piece in _pieces(value, limit):
            text += piece
            if cut := len(text) > limit:
                break
    except Exception as error:
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    text = one_line(text)
    return text if not cut and len(text) <= limit else text[: limit - 3] + "..."


def _pieces(value: Any, limit: int) -> Iterator[str]:
    """Yields the repr in nonempty pieces, so the caller can stop early and bound the work."""
    render: Any = type(value).__repr__
    if render in _BRACKETS and value:
        opening, closing = _BRACKETS[render]
        yield opening
        for number, item in enumerate(value):
            if number:
                yield ", "
            yield from _pieces(item, limit)
            if render is dict.__repr__:
                yield ": "
                yield from _pieces(value[item], limit)
        yield ",)" if closing == ")" and len(value) == 1 else closing
    elif render in (str.__repr__, bytes.__repr__):
        yield render(value[: limit + 1])
    elif render is int.__repr__ and value.bit_length() > 1024:
        yield f"<integer of {value.bit_length()} bits>"
    else:
        yield repr(value)


LONGEST_NAME = 100
"""Longest name to compare, as long texts take time."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most similar to `name` (case ignored), or None."""
    if len(name) > LONGEST_NAME:
        return None
    by_lower = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` or "", to append to a message."""
    found = nearest(name, known)
    return f"; did you mean '{found}'?" if found else ""


def renamed(given: Mapping[str, Any], names: Mapping[str, str]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """`given` under our names: `names` has them by those of others, such as vLLM.

    Also returns pairs (name, message), one for each value that is given under both names.
    """
    both = [(other, own) for other, own in names.items() if other in given and own in given]
    problems = [(other, f"another name of '{own}', which is given too; give one of them") for other, own in both]
    return {names.get(name, name): value for name, value in given.items()}, problems
