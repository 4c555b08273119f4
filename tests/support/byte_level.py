"""Byte-level tokenizers of the library, and decoders of their tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specdec_hal.models import Tokenizer

WORDS = [
    "▁",
    "▁a",
    "a",
    "b",
    "▁▁",
    "▁Paris",
    "##s",
    "##\u00e9",
    "is",
    ".",
    "▁.",
    "n't",
    "it</w>",
    "\N{REPLACEMENT CHARACTER}",
]


WORDS += ["\N{BREAD}", "▁do", "##"]


SPECIAL = ["<s>", "</s>"]


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


FIRST_BYTE = len(SPECIAL) + 1 + len(WORDS)
"""Id of the token of byte 0; ids from `SIZE` on have no token."""


SIZE = FIRST_BYTE + 256


def decoder_of(kind: str) -> Any:
    from tokenizers import decoders

    spaces, fallback, fuse = decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()
    return {
        "llama": lambda: decoders.Sequence([spaces, fallback, fuse, decoders.Strip(" ", 1, 0)]),
        "gemma": lambda: decoders.Sequence([spaces, fallback, fuse]),
        "always": lambda: decoders.Sequence([fallback, decoders.Metaspace(prepend_scheme="always")]),
        "first": lambda: decoders.Metaspace(prepend_scheme="first"),
        "never": lambda: decoders.Metaspace(prepend_scheme="never"),
        "wordpiece": lambda: decoders.WordPiece(cleanup=False),
        "cleanup": lambda: decoders.WordPiece(cleanup=True),
        "bpe": lambda: decoders.BPEDecoder("</w>"),
        "fuse": decoders.Fuse,
        "none": lambda: None,
    }[kind]()


class Made(Tokenizer):
    """A tokenizer with the library's own."""

    wrapped: Any


def make(folder: Path, library: Any) -> Made:
    """A checkpoint's tokenizer, with five ids more than it has tokens."""
    folder.mkdir()
    size = library.get_vocab_size() + 5
    (folder / "config.json").write_text(json.dumps({"model_type": "any", "vocab_size": size, "eos_token_id": 1}))
    library.save(str(folder / "tokenizer.json"))
    made = Made(folder)
    made.wrapped = library
    return made


def byte_level_library(wrap: bool = False) -> Any:
    """Tokens of one byte each, of several, across characters, and one that is no sequence of byte letters."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Library

    across = [b"\x82\xac \xe2", b"x\xe2\x82", b"\xac\xf0\x9f", b"\x8d\x9e", b" the", "é".encode(), b"\xe2\x82\xac"]
    tokens = [*SPECIAL, *map(as_letters, (bytes([byte]) for byte in range(256))), *map(as_letters, across), "日本"]
    library = Library(models.BPE({token: id_ for id_, token in enumerate(tokens)}, []))
    library.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    if wrap:
        library.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace("zz", "z")])
    return library


def as_letters(data: bytes) -> str:
    """GPT-2's letters for bytes: printable Latin-1 stands for itself, the rest for U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return "".join(chr(byte) if byte in printable else chr(256 + rest.index(byte)) for byte in data)
