"""The tokens that a grammar allows next, by trying every word, without a library."""

from __future__ import annotations

from typing import NamedTuple

from specdec_hal.config.schema import StructuredOutput


class Allowed(NamedTuple):
    """The letters that may follow, and whether the text may end."""

    letters: set[str]
    end: bool


def allowed_after(wanted: StructuredOutput, text: str) -> Allowed | None:
    """After a text of one of the words of `choice`, or of some of those of a `regex` (one|two)+; None: it is wrong."""
    kind, value = wanted.kind
    words = value if kind == "choice" else value.removeprefix("(").removesuffix(")+").split("|")
    rests = set(words)
    for letter in text:
        rests = {rest[1:] for rest in rests if rest[:1] == letter}
        if kind == "regex" and "" in rests:
            rests |= set(words)
    if not rests:
        return None
    return Allowed({rest[0] for rest in rests if rest}, "" in rests)
