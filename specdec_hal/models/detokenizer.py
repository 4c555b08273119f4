"""Token ids to text, piece by piece, in linear time and bounded memory.

The joined pieces equal `tokenizers`' decoding of all tokens, with one exception. If a run of byte-fallback tokens is
not valid UTF-8, `tokenizers` replaces all of its bytes by U+FFFD, even those of complete characters. Here, as in
SentencePiece, each invalid byte becomes one U+FFFD.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from codecs import utf_8_decode
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice
from typing import cast

import numpy as np
from numpy.typing import NDArray

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
LONGEST = 4
"""Most bytes of a character in UTF-8, hence most tokens of one."""

Ids = tuple[int, ...]


@dataclass
class Detokenizer(ABC):
    """Decodes one stream of tokens. A piece never ends inside a character.

    Bytes of an incomplete character are held back; invalid bytes become U+FFFD at once.
    Tokens in `silent` and ids outside 0..`vocab_size` - 1 have no text.
    """

    vocab_size: int
    silent: AbstractSet[int]

    def push(self, token_id: int) -> str:
        """The text that one more token completes, or ""."""
        return "" if token_id in self.silent or not 0 <= token_id < self.vocab_size else self._push(token_id)

    def finish(self) -> str:
        """The rest: U+FFFD for an incomplete character."""
        return self._finish()

    def prime(self, prompt: Sequence[int]) -> None:
        """Continue after a prompt without repeating its text."""
        spoken = (token for token in reversed(prompt) if token not in self.silent and 0 <= token < self.vocab_size)
        for token in reversed(list(islice(spoken, 2 * LONGEST))):  # at least one character, even of byte tokens
            self._push(token)

    @abstractmethod
    def _push(self, token_id: int) -> str: ...

    @abstractmethod
    def _finish(self) -> str: ...


class KnownTexts(dict[int, str | None]):
    """By token of bytes, its text after whole characters; None if it does not end with a whole one.

    `silent`, `bytes_of`: as of the detokenizers that share it. Thread-safe: texts are entered before it is said that
    they are.
    """

    def __init__(self, vocab_size: int, silent: AbstractSet[int], bytes_of: Callable[[int], bytes]) -> None:
        super().__init__()
        self._end, self._silent, self._bytes_of = vocab_size, silent, bytes_of
        self._texts: NDArray[np.object_] = np.full(vocab_size + 1, "", object)
        self._whole, self._resets, self._new = np.zeros((3, vocab_size + 1), np.bool_)
        """Which tokens have a text here, which of them end with a whole character whatever was before, and which are
        not entered."""
        self._new[:-1] = True

    def __missing__(self, token_id: int) -> str | None:
        spoken = 0 <= token_id < self._end and token_id not in self._silent
        data = self._bytes_of(token_id) if spoken else b""
        text: str | None
        text, used = utf_8_decode(data, "replace")
        if used < len(data):
            text = None
        if 0 <= token_id < self._end:
            self._texts[token_id] = text or ""
            self._resets[token_id] = bool(text) and not 0x80 <= data[0] < 0xC0
            self._whole[token_id] = text is not None
            self._new[token_id] = False
        self[token_id] = text
        return text

    def pieces(
        self, before: NDArray[np.int64], tokens: NDArray[np.int64], counted: NDArray[np.bool_]
    ) -> list[list[str] | None]:
        """The texts of n streams' `counted` tokens [n, S], each after a token [n], and "" for others.

        None for a stream with a part of a character, or none that is known to begin with a whole one.
        """
        ids = np.where(counted, np.minimum(tokens.view(np.uint64), self._end), self._end)  # negative ids become large
        before = np.minimum(before.view(np.uint64), self._end)
        for some in (before, ids):
            for token in some[self._new[some]].tolist():
                self[token]
        known = self._resets[before] & (self._whole[ids] | ~counted).all(1)
        rows: list[list[str] | None] = self._texts[ids].tolist()
        return rows if known.all() else [row if own else None for row, own in zip(rows, known.tolist(), strict=True)]


@dataclass
class ByteDetokenizer(Detokenizer):
    """For tokens that are bytes of UTF-8 in any context: byte-level BPE, and GGUF files.

    Invalid bytes become one U+FFFD for each maximal part of a character (Unicode 3.9, as Rust and Python do).
    """

    bytes_of: Callable[[int], bytes]
    known: KnownTexts | None = None
    """Those of detokenizers with the same `silent`."""
    _rest: bytes = b""

    def __post_init__(self) -> None:
        known = self.known
        self._known = KnownTexts(self.vocab_size, self.silent, self.bytes_of) if known is None else known

    def push(self, token_id: int) -> str:
        """The text that one more token completes, or ""."""
        text = None if self._rest else self._known[token_id]
        return super().push(token_id) if text is None else text

    def push_all(self, token_ids: Sequence[int]) -> list[str]:
        """As :meth:`push` of each."""
        if not self._rest:
            texts = [self._known[token] for token in token_ids]
            if None not in texts:
                return cast(list[str], texts)
        return list(map(self.push, token_ids))

    def _push(self, token_id: int) -> str:
        data = self._rest + self.bytes_of(token_id)
        text, used = utf_8_decode(data, "replace")
        self._rest = data[used:]
        return text + self._finish() if _half_surrogate(self._rest) else text

    def _finish(self) -> str:
        rest, self._rest = self._rest, b""
        return rest.decode("utf-8", "replace")


@dataclass
class PrefixDetokenizer(Detokenizer):
    """For tokens whose text depends on previous ones: Metaspace, WordPiece, byte fallback.

    A token's text is its addition to the previous token's text, as in vLLM and `tokenizers.decoders.DecodeStream`.
    `added(context, ids)`: the text that `ids` add after `context`. `byte_of`: the tokens of byte fallback. `patience`:
    most tokens to wait for while a text ends in U+FFFD.
    """

    added: Callable[[Ids, Ids], str]
    byte_of: Mapping[int, int]
    patience: int = 0
    _context: Ids = ()
    _held: Ids = field(default=())
    """Byte tokens of an incomplete character, or waiting tokens."""
    _broken: bool = False
    """Whether the context is an invalid byte, which would turn the following bytes into U+FFFD too."""

    def _push(self, token_id: int) -> str:
        if token_id in self.byte_of:
            return self._push_byte((*self._held, token_id))
        if not self.patience:
            return (self._finish() if self._held else "") + self._take((token_id,))
        ids = (*self._held, token_id)
        if len(ids) <= self.patience and self.added(self._context, ids).endswith(REPLACEMENT):
            self._held = ids
            return ""
        self._held = ()
        return self._take(ids)

    def _finish(self) -> str:
        held, self._held = self._held, ()
        if not held:
            return ""
        return self._take(held) if self.patience else self._lose(held)

    def _take(self, ids: Ids) -> str:
        text = self.added(self._context, ids)
        self._context, self._broken = ids, False
        return text

    def _lose(self, ids: Ids) -> str:
        self._context, self._broken = ids[-1:], True
        return REPLACEMENT * len(ids)

    def _push_byte(self, held: Ids) -> str:
        text = ""
        while held:
            data = bytes(map(self.byte_of.__getitem__, held))
            try:
                char, used = utf_8_decode(data, "strict", _half_surrogate(data))
            except UnicodeDecodeError as error:
                text += self._lose(held[: error.end])
                held = held[error.end :]
                continue
            if not used:
                break
            if self._broken:
                self._context, self._broken = held, False
            else:
                char = self._take(held)
            text, held = text + char, ()
        self._held = held
        return text


def _half_surrogate(data: bytes) -> bool:
    """Whether bytes are the first two of a surrogate, which Python accepts as the start of a character."""
    return len(data) == 2 and data[0] == 0xED and data[1] >= 0xA0


def byte_letters() -> dict[str, int]:
    """The letters that byte-level BPE writes bytes with (GPT-2's `bytes_to_unicode`)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}
