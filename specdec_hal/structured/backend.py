"""The interface of a grammar library, small enough for any of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Protocol

from numpy.typing import NDArray

from specdec_hal.config.schema import StructuredOutput
from specdec_hal.errors import RequestError

MAX_WHITESPACE = 32
"""White space characters in a row that `any_whitespace` allows between elements of JSON: a model that likes line breaks
would write them without end (vLLM issue 38696)."""
_SPELLINGS = 4096
"""Texts whose tokens are remembered: a grammar forces the same ones again and again."""


class UnsupportedGrammarError(RequestError):
    """A library does not enforce a part of a grammar that is otherwise in order; another may."""


class GrammarFailedError(Exception):
    """A matcher cannot go on, such as one that has used up its library's limits."""


@dataclass(frozen=True)
class Vocabulary:
    """What grammars are matched with. `size`: V, the width of the model's logits; ids from ``len(tokens)`` on have no
    token.

    `tokens`: what each adds to a text, in UTF-8 or a part of it. `special_ids` are no text. `end_ids` end a generation.
    `encode`: the model's way to spell a text.
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
        """Tokens of a piece inside a text; none if the tokenizer spells it otherwise than it stands."""
        ids = self.encode(text)
        spelled = b"".join(self.tokens[token] for token in ids if 0 <= token < len(self.tokens))
        return ids if spelled == text.encode() else []


class Matcher(Protocol):
    """Where one text stands in its grammar."""

    @abstractmethod
    def mask(self, row: NDArray[Any]) -> None:
        """Write which tokens may follow into int32 [ceil(V / 32)]: bit t % 32 of word t // 32, 1 for allowed.

        End tokens are among them where the text is :attr:`complete`. Not to be called after an end token.
        GrammarFailedError if the matcher cannot go on.
        """

    @abstractmethod
    def advance(self, token: int) -> bool:
        """Take a token; False, with nothing changed, if the grammar refuses it."""

    @abstractmethod
    def rollback(self, count: int) -> None:
        """Forget the last `count` tokens that :meth:`advance` took, end tokens included."""

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether the text may end here."""

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Whether an end token was taken: nothing may follow."""

    @abstractmethod
    def forced(self) -> list[int]:
        """Tokens of the text that every continuation begins with; the library may see less of it than there is."""


class Grammar(Protocol):
    """A compiled grammar, which any number of texts may be matched with. `backend`: the name of its backend."""

    backend: str

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """About what it takes."""

    @property
    @abstractmethod
    def exported(self) -> Any:
        """What :meth:`GrammarBackend.imported` makes the grammar of in another process; can be pickled."""

    @abstractmethod
    def matcher(self) -> Matcher:
        """At the beginning of a text."""


class GrammarBackend(Protocol):
    """A grammar library over one vocabulary."""

    name: str

    @abstractmethod
    def compile(self, wanted: StructuredOutput) -> Grammar:
        """RequestError for a grammar that is none, or takes more time or memory than it may.

        UnsupportedGrammarError names what the library does not enforce. Takes as long as it does: call it on a thread
        that nobody waits for.
        """

    @abstractmethod
    def imported(self, exported: Any) -> Grammar:
        """The grammar that another process compiled over an equal vocabulary; quick."""
