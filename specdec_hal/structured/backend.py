"""A minimal interface of grammar libraries."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from specdec_hal.config.schema import StructuredOutput
from specdec_hal.errors import RequestError

MAX_WHITESPACE = 32
"""Most consecutive white space characters under `any_whitespace`, since a model may generate line breaks forever (vLLM
issue 38696).
"""
_SPELLINGS = 4096
"""Size of the cache of tokenised texts: a grammar often forces the same ones."""
_TOKEN_BYTES = 8
"""Bytes of forced text considered for each token: a forced text may be long or endless, and a step uses few tokens."""


class UnsupportedGrammarError(RequestError):
    """A library does not enforce a part of a valid grammar, or not within the limits of time; another may."""


class GrammarFailedError(Exception):
    """A matcher failed, for example at its library's limits."""


class TokenRefusedError(GrammarFailedError):
    """A matcher refused a token that its mask allows: a defect."""


class GrammarTimeoutError(GrammarFailedError):
    """A matcher did not return in time."""


@dataclass(frozen=True)
class Vocabulary:
    """The vocabulary of grammars. `size`: V, the width of the model's logits; ids from ``len(tokens)`` on have no
    token.

    `tokens`: bytes that each adds to a text (UTF-8, possibly partial). `special_ids` have no text. `end_ids` end a
    generation. `encode`: the tokenizer.
    """

    size: int
    tokens: Sequence[bytes]
    special_ids: frozenset[int]
    end_ids: frozenset[int]
    encode: Callable[[str], list[int]]

    @classmethod
    def of(cls, tokenizer: Any, size: int, end_ids: frozenset[int]) -> Vocabulary:
        """That of a :class:`~specdec_hal.models.tokenizer.Tokenizer`."""
        tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        special = frozenset(tokenizer.special_ids) | end_ids
        encode = lru_cache(_SPELLINGS)(partial(tokenizer.encode, add_special_tokens=False))
        return cls(size, tokens, special, end_ids, lambda text: list(encode(text)))

    def spelled(self, text: str) -> list[int]:
        """Tokens of a piece inside a text; none if they do not decode to it."""
        ids = self.encode(text)
        spelled = b"".join(self.tokens[token] for token in ids if 0 <= token < len(self.tokens))
        return ids if spelled == text.encode() else []

    def begun(self, text: bytes, room: int) -> list[int]:
        """At most `room` tokens of the beginning of a forced text: its first :func:`forced_bytes` at most, and whole
        characters only, since a grammar may force some bytes of one.
        """
        most = forced_bytes(room)
        first, cut = text[:most], len(text) >= most
        try:
            known = first.decode()
        except UnicodeDecodeError as error:
            known = first[: error.start].decode()
        ids = self.spelled(known) if known else []
        if cut and len(ids) > 1:  # what follows may belong to the last token
            ids = ids[:-1]
        return ids[:room]


def forced_bytes(room: int) -> int:
    """Bytes of forced text to know for `room` tokens, and two more, since a cut may change the last ones."""
    return _TOKEN_BYTES * (room + 2)


class Matcher(Protocol):
    """The state of one text in its grammar."""

    @abstractmethod
    def mask(self, row: NDArray[Any]) -> None:
        """Write the allowed next tokens into int32 [ceil(V / 32)]: bit t % 32 of word t // 32 is 1 if allowed.

        They include end tokens if the text is :attr:`complete`. Do not call it after an end token. GrammarFailedError
        if the matcher fails.
        """

    @abstractmethod
    def advance(self, token: int) -> bool:
        """Advance by a token; False, with nothing changed, if the grammar refuses it."""

    @abstractmethod
    def rollback(self, count: int) -> None:
        """Undo the last `count` tokens of :meth:`advance`, end tokens included."""

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether the text may end here."""

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Whether an end token was accepted."""

    @abstractmethod
    def forced(self, room: int) -> list[int]:
        """Forced next tokens, at most `room`, possibly not all. Its time does not grow with the forced text."""


class Grammar(Protocol):
    """A compiled grammar, shared by any number of matchers. `backend`: the name of its backend."""

    backend: str

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Approximate bytes of heap."""

    @property
    @abstractmethod
    def exported(self) -> Any:
        """A picklable form for :meth:`GrammarBackend.imported` in another process."""

    @abstractmethod
    def matcher(self) -> Matcher:
        """A matcher at the start of a text."""

    def first(self, size: int) -> NDArray[Any]:
        """The mask at the start of a text over `size` tokens, made once. GrammarFailedError as from a matcher.

        Do not write to it.
        """
        known: dict[int, NDArray[Any]] = self.__dict__.setdefault("_first", {})
        if size not in known:
            row = np.zeros(-(-size // 32), np.int32)
            self.matcher().mask(row)
            known[size] = row
        return known[size]


class GrammarBackend(Protocol):
    """A grammar library over one vocabulary."""

    name: str

    @abstractmethod
    def compile(self, wanted: StructuredOutput) -> Grammar:
        """RequestError for an invalid grammar or one beyond the limits of time or memory.

        UnsupportedGrammarError names unenforced features. It may take long: call it on another thread.
        """

    @abstractmethod
    def imported(self, exported: Any) -> Grammar:
        """Import a grammar compiled by another process over an equal vocabulary; fast."""
