"""Draft models with other token ids: drafts are common tokens of both vocabularies.

Token-level intersection (Timor et al., arXiv:2502.05202): two tokens are equal if their bytes are, which unlike strings
also covers parts of characters and byte tokens; among several with the same bytes the first counts. The draft model's
logits of common tokens go to the target's ids, all others are -inf there. Drafts are drawn from the draft's
distribution renormalised over the common tokens, and verified as usual, so that the target's distribution is kept
whatever the overlap. A text token that the draft model lacks is replaced by its tokens for the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from specdec_hal.plugin.model import ModelConfig
from specdec_hal.plugin.proposer import Tokenizer


class Vocabulary:
    """`size`: of the target's vocabulary. `pairs`: the draft model's id of each of its tokens that both have.

    `spell`: the draft model's ids for another of the target's tokens, at least one.
    """

    def __init__(self, size: int, pairs: Mapping[int, int], spell: Callable[[int], Sequence[int]]) -> None:
        self._size, self._pairs, self._spell = size, pairs, cache(spell)

    def __len__(self) -> int:
        """Common tokens."""
        return len(self._pairs)

    def read(self, tokens: Sequence[int]) -> list[int]:
        """The draft model's tokens for these of the target's."""
        found: list[int] = []
        for token in tokens:
            own = self._pairs.get(token)
            found += self._spell(token) if own is None else (own,)
        return found

    @property
    def target_to_draft(self) -> npt.NDArray[np.int32]:
        """The operand of the op `map_draft_logits`."""
        return target_to_draft(self._size, list(self._pairs), list(self._pairs.values()))


def target_to_draft(size: int, tokens: Sequence[int], own: Sequence[int]) -> npt.NDArray[np.int32]:
    """Int32 [size]: a draft model's `own` id of each of these of the target's `tokens`, and -1 of the others."""
    columns = np.full(size, -1, np.int32)
    columns[np.array(tokens, np.int64)] = own
    return columns


def padded(target: ModelConfig, own: ModelConfig) -> Vocabulary:
    """The same tokens, padded to another number of ids."""
    shared = range(min(target.vocab_size, own.vocab_size))
    return Vocabulary(target.vocab_size, dict(zip(shared, shared, strict=True)), lambda token: (_otherwise(own),))


def intersection(target: ModelConfig, own: ModelConfig, tokenizer: Tokenizer, other: Tokenizer) -> Vocabulary:
    """The common tokens of two tokenizers, the target's first; special tokens are those of the same name."""
    theirs, ours = _by_bytes(tokenizer, target.vocab_size), _by_bytes(other, own.vocab_size)
    pairs = {id_: ours[key] for key, id_ in theirs.items() if key in ours}
    if target.eos_token_ids and own.eos_token_ids:  # whatever their names are
        pairs.setdefault(target.eos_token_ids[0], own.eos_token_ids[0])

    def spell(token: int) -> Sequence[int]:
        try:
            text = "" if token in tokenizer.special_ids else tokenizer.token_bytes(token).decode()
        except UnicodeDecodeError:  # a part of a character
            text = ""
        return tuple(other.encode(text, add_special_tokens=False)) or (_otherwise(own),)

    return Vocabulary(target.vocab_size, pairs, spell)


def _by_bytes(tokenizer: Tokenizer, size: int) -> dict[tuple[bool, bytes], int]:
    """Each token's id by whether it is special, and its bytes; the first of several."""
    found: dict[tuple[bool, bytes], int] = {}
    for id_ in range(min(tokenizer.vocab_size, size)):
        if spelled := tokenizer.token_bytes(id_):
            found.setdefault((id_ in tokenizer.special_ids, spelled), id_)
    return found


def _otherwise(own: ModelConfig) -> int:
    return own.eos_token_ids[0] if own.eos_token_ids else 0


def same_tokens(target: Tokenizer, other: Tokenizer) -> bool:
    """Whether every id has the same text in both tokenizers."""
    shared = min(target.vocab_size, other.vocab_size)
    return all(target.token_bytes(id_) == other.token_bytes(id_) for id_ in range(shared)) and (
        target.special_ids == other.special_ids
    )
