"""Questions on which drafts are proposed, accepted and rejected: repetition, quotes, edits, JSON, long contexts, ..."""

from __future__ import annotations

import itertools
from typing import NamedTuple

BOUNDARIES = (16, 64, 128, 256, 512, 1024, 2048)
"""Sizes of KV blocks and chunks in common engines, in tokens."""


class Prompt(NamedTuple):
    """A prompt of a kind. `tokens`: the most that are asked for, if fewer than of others."""

    kind: str
    text: str
    tokens: int | None = None


_FUNCTION = "def area(width, height):\n    if width < 0 or height < 0:\n        raise ValueError(width, height)\n"
_SHORT = {
    "repetition": (
        "Repeat this sentence five times: The quick brown fox jumps over the lazy dog.",
        "one two three four five one two three four five one two three",
        "Copy the list exactly: alpha=1, beta=2, gamma=3, delta=4, epsilon=5, zeta=6, eta=7, theta=8.",
    ),
    "quotes": (
        "Quote the text word for word: 'Version 0.22.0 replaced 0.21.9 on 2026-04-08, see issue 39273.'",
        'He wrote: "What is written without effort is in general read without pleasure." She quoted him: "What is',
    ),
    "code": (
        "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):\n",
        f"Rename width to w in this function.\n\n{_FUNCTION}    return width * height\n\nRenamed:\n\n",
        "for i in range(10):\n    print(i)\nfor j in range(10):\n    print(",
    ),
    "json": (
        "Write a JSON array of the numbers from 1 to 30.",
        '[{"id": 1, "name": "a", "tags": []}, {"id": 2, "name": "b", "tags": []}, {"id": 3,',
    ),
    "prose": (
        "What is 17 times 23? Explain step by step.",
        "List the months of the year, then list them again in reverse order.",
        "Once upon a time",
    ),
    "unicode": (
        "Répète : « Où est la bibliothèque ? Où est la bibliothèque ? » Où est",
        "请重复三遍 你好世界 你好世界 你好",
        "😀😃😄😀😃😄😀😃",
    ),
    "short": ("The capital of France is", "2 + 2 ="),
}
_SENTENCE = "Item {number} of the list has the colour {colour} and the weight {weight} kg. "
_COLOURS = ("red", "green", "blue", "white", "black")


def _long(words: int) -> str:
    """Text of at least so many words, some of which come again, and a question about it."""
    lines, count = list[str](), 0
    for number in itertools.count(1):
        line = _SENTENCE.format(number=number, colour=_COLOURS[number % 5], weight=number * 7 % 31)
        lines.append(line)
        count += len(line.split())
        if count >= words:
            return "".join(lines) + f"\nThe colours of the first items again: item 1 is {_COLOURS[1]}, item 2 is"
    raise AssertionError


_SHARED = _long(60)
_QUESTIONS = ("Which item is green?", "Which item is red?", "Repeat the list.")


def builtin(longest: int) -> list[Prompt]:
    """The prompts; contexts of up to about `longest` tokens. Answers to the short ones cross 16 and 32 tokens."""
    prompts = [Prompt(kind, text) for kind, texts in _SHORT.items() for text in texts]
    prompts += [Prompt("one token", text, 1) for text in (_SHORT["repetition"][1], _SHORT["code"][2])]
    prompts += [Prompt("mixed lengths", _SHORT["json"][1], size) for size in (2, 7, 17)]
    prompts += [Prompt("shared prefix", f"{_SHARED} white.\n{question}") for question in _QUESTIONS]
    for boundary in BOUNDARIES:
        # English has about 1.4 tokens a word here, so that answers cross the boundary.
        if 64 <= boundary <= longest:
            prompts.append(Prompt("long context", _long(int((boundary - 24) / 1.4))))
    return prompts


SAMPLED = (
    "one two three four five one two three four five one two",
    "The weather today is",
    "a b a b a b a",
)
"""Prompts of sampled answers: the first and last let n-grams draft what is not certain."""

SCHEMAS = (
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 3, "maxItems": 6},
)
