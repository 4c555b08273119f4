"""Text piece by piece: what `tokenizers` decodes all tokens to, for every kind of decoder, at once, in linear time."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_hal.models import Tokenizer
from tests.support.byte_level import BYTES, FIRST_BYTE, SIZE, SPECIAL, WORDS, Made, byte_level_library, decoder_of, make

KINDS = ["llama", "gemma", "always", "first", "never", "wordpiece", "cleanup", "bpe", "fuse", "none"]


@pytest.fixture(scope="module")
def by_kind(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    from tokenizers import AddedToken, models
    from tokenizers import Tokenizer as Library

    found: dict[str, Made] = {}
    for kind in KINDS:
        vocabulary = [(token, 0.0) for token in (*SPECIAL, "<unk>", *WORDS, *BYTES)]
        library = Library(models.Unigram(vocabulary, 2, byte_fallback=True))
        library.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
        if (decoder := decoder_of(kind)) is not None:
            library.decoder = decoder
        found[kind] = make(tmp_path_factory.mktemp("kind") / kind, library)
    return found


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("byte") / "level", byte_level_library())


def pieces(tokenizer: Tokenizer, ids: list[int], **options: Any) -> list[str]:
    detokenizer = tokenizer.detokenizer(**options)
    return [*map(detokenizer.push, ids), detokenizer.finish()]


def whole(tokenizer: Made, ids: list[int], skip: bool) -> str:
    text: str = tokenizer.wrapped.decode(ids, skip_special_tokens=skip)
    return text


# ---- of many streams at once


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_texts_of_many_streams_at_once(byte_level: Tokenizer, data: st.DataObject) -> None:
    """What is not made together goes to the stream's own detokenizer, which misses the rest."""
    streams, width = 3, 3
    ids = [data.draw(st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=14)) for _ in range(streams)]
    known = byte_level.known_texts
    assert known is not None
    detokenizers = [byte_level.detokenizer(skip_special_tokens=True) for _ in range(streams)]
    texts, at = [one.push(some[0]) for one, some in zip(detokenizers, ids, strict=True)], [1] * streams
    while any(start < len(some) for start, some in zip(at, ids, strict=True)):
        counts = np.array([min(data.draw(st.integers(0, width)), len(s) - a) for a, s in zip(at, ids, strict=True)])
        tokens = np.full((streams, width), -1, np.int64)
        for row, (start, count) in enumerate(zip(at, counts, strict=True)):
            tokens[row, :count] = ids[row][start : start + count]
        before = np.array([some[start - 1] for start, some in zip(at, ids, strict=True)], np.int64)
        together = known.pieces(before, tokens, np.arange(width) < counts[:, None])
        for row, pieces in enumerate(together):
            new = ids[row][at[row] : at[row] + counts[row]]
            texts[row] += "".join(detokenizers[row].push_all(new) if pieces is None else pieces)
            assert pieces is None or not any(pieces[len(new) :])
            at[row] += counts[row]
    for text, one, some in zip(texts, detokenizers, ids, strict=True):
        assert text + one.finish() == whole(byte_level, some, True)


def test_ids_outside_the_vocabulary_have_no_common_text(byte_level: Tokenizer) -> None:
    known, letter = byte_level.known_texts, byte_level.encode("a")[-1]
    assert known is not None
    tokens, counted = np.array([[letter], [SIZE], [-1], [letter]], np.int64), np.ones((4, 1), np.bool_)
    before = np.array([letter, letter, letter, -1], np.int64)
    assert known.pieces(before, tokens, counted) == [["a"], None, None, None]


# ---- the same text as in one go


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("llama", "gemma", "always")])
@given(ids=st.lists(st.integers(0, SIZE + 4), max_size=30), skip=st.booleans())
@settings(max_examples=60)
def test_any_tokens(by_kind: dict[str, Made], kind: str, ids: list[int], skip: bool) -> None:
    got = pieces(by_kind[kind], ids, skip_special_tokens=skip)
    assert "".join(got) == whole(by_kind[kind], ids, skip)
    assert got[-1] == ""  # nothing has to wait


TEXTS = st.text("a é日🎉\u0301\ufffd", max_size=4).map(lambda text: [FIRST_BYTE + byte for byte in text.encode()])
TOKENS = st.one_of(st.integers(0, FIRST_BYTE - 1).map(lambda token: [token]), TEXTS, st.just([SIZE + 2]))


@pytest.mark.parametrize("kind", ["llama", "gemma", "always"])
@given(parts=st.lists(TOKENS, max_size=12), skip=st.booleans())
@settings(max_examples=100)
def test_bytes_that_are_characters(by_kind: dict[str, Made], kind: str, parts: list[list[int]], skip: bool) -> None:
    ids = [token for part in parts for token in part]
    got = pieces(by_kind[kind], ids, skip_special_tokens=skip)
    assert "".join(got) == whole(by_kind[kind], ids, skip)
    assert got[-1] == ""


@given(data=st.lists(st.one_of(st.binary(max_size=6), st.text(max_size=3).map(str.encode)), max_size=6))
def test_bytes_that_are_none(by_kind: dict[str, Made], data: list[bytes]) -> None:
    """Each byte that belongs to no character is U+FFFD, as with SentencePiece; `tokenizers` gives up the whole run."""
    run = b"".join(data)
    got = pieces(by_kind["gemma"], [FIRST_BYTE + byte for byte in run])
    expected = run.decode("utf-8", "surrogateescape")
    assert "".join(got) == "".join("\ufffd" if "\udc80" <= char <= "\udcff" else char for char in expected)
    if all("\udc80" <= char <= "\udcff" for char in expected):
        assert "".join(got) == whole(by_kind["gemma"], [FIRST_BYTE + byte for byte in run], False)


def test_text_after_a_byte_that_is_none(by_kind: dict[str, Made]) -> None:
    """It is not the beginning of the text, whose space is left out."""
    assert pieces(by_kind["llama"], [FIRST_BYTE + 0xFF, 3 + WORDS.index("▁Paris")]) == ["�", " Paris", ""]


@given(ids=st.lists(st.integers(0, 2 + 256 + 8 + 4), max_size=30), skip=st.booleans())
def test_byte_level(byte_level: Made, ids: list[int], skip: bool) -> None:
    assert "".join(pieces(byte_level, ids, skip_special_tokens=skip)) == whole(byte_level, ids, skip)


def test_byte_level_within_a_sequence(tmp_path: Path) -> None:
    tokenizer = make(tmp_path / "wrapped", byte_level_library(wrap=True))
    ids = [2 + byte for byte in "a€🎉é z".encode()]
    assert pieces(tokenizer, ids) == ["a", "", "", "€", "", "", "", "🎉", "", "é", " ", "z", ""]
    broken = [2 + 0xE2] * 50
    got = pieces(tokenizer, broken)
    assert "".join(got) == "\ufffd" * 50 and "".join(got[:10])


# ---- at once, and no more work than that


@pytest.mark.parametrize(
    ("data", "byte_level_pieces", "fallback_pieces"),
    [
        (b"a\xe2\x82\xacb", ["a", "", "", "€", "b", ""], ["a", "", "", "€", "b", ""]),
        (b"\xff\xe2\x82a", ["�", "", "", "�a", ""], ["�", "", "", "��a", ""]),
        (b"\xe2\xe2\x82\xac", ["", "�", "", "€", ""], ["", "�", "", "€", ""]),
        (b"\xe2\x82", ["", "", "�"], ["", "", "��"]),
        (b"\xed\xa0\x80", ["", "��", "�", ""], ["", "��", "�", ""]),
        (b"\xf4\x90", ["", "��", ""], ["", "��", ""]),
    ],
)
def test_replacement_characters_come_at_once(
    by_kind: dict[str, Made], byte_level: Made, data: bytes, byte_level_pieces: list[str],
    fallback_pieces: list[str],
) -> None:  # fmt: skip
    """As soon as bytes can no longer become a character: one for each part of one, or for each byte."""
    assert pieces(byte_level, [2 + byte for byte in data]) == byte_level_pieces
    assert pieces(by_kind["llama"], [FIRST_BYTE + byte for byte in data]) == fallback_pieces


@pytest.mark.parametrize("data", [b"\xe2", b"\x80", b"\xff", b"\xf0\x9f", "🎉".encode(), b"\xac \xe2\x82"])
@pytest.mark.parametrize("kind", ["byte_level", "llama"])
def test_memory_of_undecodable_bytes(by_kind: dict[str, Made], byte_level: Made, kind: str, data: bytes) -> None:
    """16,000 byte tokens kept 1.1 GiB."""
    tokenizer, first = (byte_level, 2) if kind == "byte_level" else (by_kind[kind], FIRST_BYTE)
    ids = [first + byte for byte in data] * (16_000 // len(data))
    pieces(tokenizer, ids[:100])
    tracemalloc.start()
    try:
        detokenizer = tokenizer.detokenizer()
        text = "".join(map(detokenizer.push, ids))
        assert len(text) > 3900
        del text, detokenizer
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()


# ---- after a prompt, and tokens by themselves


def test_a_text_goes_on_after_its_prompt(by_kind: dict[str, Made], byte_level: Made) -> None:
    paris, a = 3 + WORDS.index("▁Paris"), 3 + WORDS.index("a")
    for kind in ("llama", "always", "first"):
        tokenizer = by_kind[kind]
        assert pieces(tokenizer, [paris]) == ["Paris", ""]
        assert pieces(tokenizer, [paris], prompt=[0, a]) == [" Paris", ""]
        assert pieces(tokenizer, [paris], prompt=[a, 1], skip_special_tokens=True) == [" Paris", ""]
        assert pieces(tokenizer, [paris], prompt=[0, 1], skip_special_tokens=True) == ["Paris", ""]
    euro = [FIRST_BYTE + byte for byte in "€".encode()]
    assert pieces(by_kind["llama"], [paris], prompt=euro * 10) == [" Paris", ""]
    assert pieces(by_kind["llama"], euro[2:], prompt=[a, *euro[:2]]) == ["€", ""]
    assert pieces(byte_level, [2 + 0xAC], prompt=[2 + 0xE2, 2 + 0x82]) == ["€", ""]


def test_the_bytes_of_a_token(by_kind: dict[str, Made], byte_level: Made) -> None:
    assert byte_level.token_bytes(2 + 0xE2) == b"\xe2" and byte_level.token_bytes(2 + 256) == b"\x82\xac \xe2"
    assert byte_level.token_bytes(0) == b"<s>" and byte_level.token_bytes(2 + 256 + 7) == "日本".encode()
    assert byte_level.token_bytes(2 + 256 + 8) == b""
    llama, wordpiece = by_kind["llama"], by_kind["wordpiece"]
    assert llama.token_bytes(FIRST_BYTE + 0xE2) == b"\xe2"
    assert llama.token_bytes(3 + WORDS.index("▁Paris")) == b" Paris"
    assert wordpiece.token_bytes(3 + WORDS.index("##s")) == b"s" and wordpiece.token_bytes(SIZE) == b""
    assert wordpiece.token_bytes(3 + WORDS.index("is")) == b" is"
