"""Text to token ids and back: a thin wrapper over the `tokenizers` library, and piecewise decoding for streaming."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from specdec_hal.models.checkpoint import checkpoint_error, parse_json, read_file, read_token_ids
from specdec_hal.wording import one_line, short

TOKENIZER = "tokenizer.json"
MAX_TOKENIZER = 128 << 20
"""Bytes of a tokenizer.json."""

_PREFIX = re.compile(rb'"continuing_subword_prefix"\s*:\s*"')

# What the library decodes an incomplete or invalid UTF-8 sequence to.
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

# Pairs of tokens whose text is remembered: at most some 20 MiB.
_PIECES = 1 << 16

Advance = tuple[str, tuple[int, ...], int]
"""New text, the tokens that what follows is decoded with, and how many of them are context."""


class Tokenizer:
    """The tokenizer of a checkpoint folder, checked against its config.json.

    CheckpointError if a file is missing or corrupt, or if the tokenizer has an id that the model has no embedding for.
    A model may have more embeddings than the tokenizer has tokens (vocabularies are often padded); those decode to "".
    """

    def __init__(self, folder: str | Path) -> None:
        from tokenizers import Tokenizer as Library

        config = read_token_ids(folder)
        file, text = read_file(folder, TOKENIZER, MAX_TOKENIZER)
        _check_merges(file, text)
        try:
            self._library: Any = Library.from_str(text.decode("utf-8"))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the library raises plain Exception, and Rust's panics as BaseException
            got = f"{len(text)} bytes that are not ({one_line(error)})"
            raise checkpoint_error(file, "a tokenizer of the tokenizers library", got, "download it again") from error
        ids = self._library.get_vocab(with_added_tokens=True).values()
        self.vocab_size: int = max(ids, default=-1) + 1
        cure = "use the tokenizer and config.json of one and the same checkpoint"
        if self.vocab_size > config.vocab_size:
            expected = f"token ids in 0..{config.vocab_size - 1}, the model's vocabulary"
            raise checkpoint_error(file, expected, f"ids up to {self.vocab_size - 1}", cure)
        self.bos_token_id = config.bos_token_id
        self.eos_token_ids = config.eos_token_ids
        self.eos_token_id = config.eos_token_ids[0] if config.eos_token_ids else None
        for token in (*self.eos_token_ids, *([] if self.bos_token_id is None else [self.bos_token_id])):
            if self._library.id_to_token(token) is None:
                raise checkpoint_error(file, f"a token for id {token} (bos or eos in config.json)", "none", cure)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. Special tokens written out in it become one token each.

        `add_special_tokens`: whether the post-processor of tokenizer.json adds its own, such as a BOS; False for a
        rendered chat template.
        """
        ids: list[int] = self._library.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens included; bytes that are no UTF-8 become U+FFFD."""
        text: str = self._library.decode(ids, skip_special_tokens=False)
        return text

    @cached_property
    def advance(self) -> Callable[[tuple[int, ...], int], Advance]:
        """What one token more adds to a text, remembered: two tokens in a row come again and again.

        Takes the tokens and how many of them are context, whose text has been shown. Returns the text that is certain
        now, and the same of what is left.
        """
        return lru_cache(_PIECES)(self._advance)

    def _advance(self, ids: tuple[int, ...], context: int) -> Advance:
        text = self.decode(ids)
        if text.endswith(_REPLACEMENT):
            return "", ids, context
        return text[len(self.decode(ids[:context])) :], ids[context:], len(ids) - context

    def detokenizer(self) -> Detokenizer:
        """Decodes one stream of tokens piece by piece."""
        return Detokenizer(self)


def _check_merges(file: Path, text: bytes) -> None:
    """Refuse merges without the prefix that the model says they have: the library aborts the process for them."""
    if not _PREFIX.search(text):
        return
    raw = parse_json(file, text)
    model = raw.get("model") if isinstance(raw, dict) else None
    prefix = model.get("continuing_subword_prefix") if isinstance(model, dict) else None
    merges = model.get("merges") if isinstance(model, dict) else None
    if not isinstance(prefix, str) or not isinstance(merges, list):
        return
    for merge in merges:
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not (isinstance(parts, list) and parts and isinstance(parts[-1], str) and parts[-1].startswith(prefix)):
            expected = f"merges whose second part starts with continuing_subword_prefix {short(prefix)}"
            raise checkpoint_error(file, expected, short(merge), "download it again")


class Detokenizer:
    """Decodes token by token; the pieces joined are :meth:`Tokenizer.decode` of all tokens.

    A piece never ends inside a character: bytes that may still become one are kept until it is complete, or known to be
    none. Each call decodes the tokens since the last complete character, and those of the piece before as context.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._decode, self._advance = tokenizer.decode, tokenizer.advance
        self._ids: tuple[int, ...] = ()  # the context, then the tokens that are not emitted yet
        self._context = 0

    def push(self, token_id: int) -> str:
        """The text that is certain after one more token; "" if there is none yet."""
        piece, self._ids, self._context = self._advance((*self._ids, token_id), self._context)
        return piece

    def finish(self) -> str:
        """The rest; an incomplete character is U+FFFD."""
        rest = self._decode(self._ids)[len(self._decode(self._ids[: self._context])) :]
        self._ids = self._ids[self._context :]
        self._context = len(self._ids)
        return rest
