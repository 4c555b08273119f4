"""Guided requests on FastDeploy's buffers: with drafts they say what they say without, and what they were asked for."""

from __future__ import annotations

import json
import re
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llguidance", reason="llguidance is not installed (pip install 'specdec-hal[structured]')")

from specdec_hal.errors import RequestError
from specdec_hal.models import load_tokenizer
from tests.fastdeploy.batches import tensors

WIDTH = 4100
"""Of the logits: more than the tokenizer has, and no whole words of a mask."""
END = 0
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["a", "bc", None]}},
    "required": ["ok", "kind"],
    "additionalProperties": False,
}
ASKED: list[dict[str, Any]] = [
    {"guided_json": SCHEMA}, {}, {"guided_regex": "(ab|c){2,4}d"}, {"guided_choice": ["return a", "return b", "def"]},
    {"guided_grammar": 'root ::= "x" ("y" | "z") "x"'},
]  # fmt: skip


@cache
def tokenizer() -> Any:
    return load_tokenizer(Path(__file__).parents[2] / "models" / "tiny-py-lm")


def logits_after(slot: int, text: list[int]) -> np.ndarray[Any, Any]:
    seed = zlib.crc32(np.array([slot, *text[-3:]]).tobytes())
    return np.random.default_rng(seed).normal(size=WIDTH).astype(np.float32)


def decode(guided: Any, known: list[list[int]] | None, k: int, limit: int = 24) -> list[list[int]]:
    """Greedy, one step after the other; `known`: texts that most drafts are taken from, some of them changed."""
    rng, slots = np.random.default_rng(k), len(ASKED)
    texts: list[list[int]] = [[] for _ in ASKED]
    drafts, prompts = np.full((slots, k + 1), 7), np.ones(slots, np.int64)
    begun = 0
    while any(len(text) < limit and END not in text for text in texts):
        lens, enc = np.zeros(slots, np.int32), np.zeros(slots, np.int32)
        for slot, text in enumerate(texts):
            if len(text) >= limit or END in text:
                continue
            if begun == 0:
                lens[slot] = enc[slot] = 3  # a prompt
                continue
            ahead = [] if known is None else known[slot][len(text) : len(text) + int(rng.integers(0, k + 1))]
            drafts[slot, 1 : len(ahead) + 1] = ahead
            if ahead and rng.random() < 0.3:
                drafts[slot, rng.integers(1, len(ahead) + 1)] = rng.choice([-1, 5, 99, WIDTH + 3])
            lens[slot] = 1 + len(ahead)
        rows = np.where(enc > 0, 1, lens)
        offsets = np.cumsum([0, *rows]).astype(np.int32)
        logits = [
            logits_after(slot, texts[slot] + drafts[slot, 1 : i + 1].tolist())
            for slot in range(slots)
            for i in range(rows[slot])
        ]
        ids, this, encoder, cu, given = tensors(drafts, lens, enc, offsets, np.array(logits))
        guided.prepare(ids, this, encoder)
        guided.apply(given)
        cut = guided.truncate(ids, this, encoder, cu).numpy()
        assert (this.numpy() == lens).all(), "the lengths that were fed stay"
        accepted, counts = np.full((slots, k + 1), -1), np.zeros(slots, np.int32)
        for slot in np.flatnonzero(lens):
            masked = given.numpy()[offsets[slot] : offsets[slot + 1]]
            refused = [
                not 0 <= draft < WIDTH or row[draft] == -np.inf
                for row, draft in zip(masked, drafts[slot, 1 : rows[slot]], strict=False)
            ]
            if not ASKED[slot]:
                refused = []
            assert cut[slot] == ([*refused, True].index(True) + 1 if refused else lens[slot])
            target = masked.argmax(axis=1)
            new = []
            for i in range(1 if enc[slot] else cut[slot]):
                new.append(int(target[i]))
                if new[-1] == END or i + 1 == len(target) or new[-1] != drafts[slot, i + 1]:
                    break
            counts[slot] = len(new)
            accepted[slot, : len(new)] = new
            texts[slot] += new
        decoder = np.where(begun == 0, 3, 9) + np.zeros(slots, np.int32)
        assert guided.commit(*tensors(accepted, counts, decoder, prompts)) == {}
        begun += 1
    return [text[:limit] for text in texts]


def guided_decoding(k: int) -> Any:
    from specdec_hal_fastdeploy.guided import GuidedDecoding

    guided = GuidedDecoding(tokenizer(), WIDTH, {END}, len(ASKED), k, backend="llguidance")
    for slot, asked in enumerate(ASKED):
        guided.begin(slot, **asked)
    return guided


def test_drafts_change_nothing(layer: Any) -> None:
    plain = decode(guided_decoding(0), None, 0)
    assert decode(guided_decoding(4), plain, 4) == plain
    said = [tokenizer().decode(text).removesuffix("<|endoftext|>") for text in plain]
    found = json.loads(said[0])
    assert set(found) == {"ok", "kind"} and type(found["ok"]) is bool and found["kind"] in ("a", "bc", None)
    assert plain[1] == decode_free(1), "a request without a grammar is as ever"
    assert re.fullmatch("(ab|c){2,4}d", said[2]) and said[3] in ASKED[3]["guided_choice"]
    assert said[4] in ("xyx", "xzx")


def decode_free(slot: int, limit: int = 24) -> list[int]:
    text: list[int] = []
    while len(text) < limit and END not in text:
        text.append(int(logits_after(slot, text).argmax()))
    return text


def test_a_slot_that_is_taken_again(layer: Any) -> None:
    guided = guided_decoding(2)
    guided.begin(0, guided_choice=["x"])
    guided.end(2)
    texts = decode(guided, None, 2)
    assert tokenizer().decode(texts[0]).startswith("x") and texts[2] == decode_free(2)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"guided_json": "{", "guided_regex": "a"}, "got guided_json and guided_regex; leave out one of them"),
        ({"guided_yaml": "a"}, "got guided_yaml; leave it out"),
        ({"guided_regex": "(a"}, "llguidance refuses it"),
        ({"guided_json": "{"}, "guided_json: expected JSON"),
    ],
)
def test_what_is_refused(layer: Any, asked: dict[str, Any], message: str) -> None:
    guided = guided_decoding(2)
    with pytest.raises(RequestError, match=re.escape(message)):
        guided.begin(0, **asked)
