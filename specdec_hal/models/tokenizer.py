"""Text to token ids and back: a thin wrapper over the `tokenizers` library, and piecewise decoding for streaming."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specdec_hal.models.checkpoint import check_file, checkpoint_error, read_token_ids

TOKENIZER = "tokenizer.json"

# What the library decodes an incomplete or invalid UTF-8 sequence to.
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Tokenizer:
    """The tokenizer of a checkpoint folder, checked against its config.json.

    CheckpointError if a file is missing or corrupt, or if the tokenizer has an id that the model has no embedding for.
    A model may have more embeddings than the tokenizer has tokens (vocabularies are often padded); those decode to "".
    """

    def __init__(self, folder: str | Path) -> None:
        from tokenizers import Tokenizer as Library

        config = read_token_ids(folder)
        file = check_file(folder, TOKENIZER)
        text = file.read_bytes()
        try:
            self._library: Any = Library.from_str(text.decode("utf-8"))
        except Exception as error:  # the library raises plain Exception
            got = f"{len(text)} bytes that are not ({error})"
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

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, with no special token added."""
        ids: list[int] = self._library.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens included; bytes that are no UTF-8 become U+FFFD."""
        text: str = self._library.decode(ids, skip_special_tokens=False)
        return text

    def detokenizer(self) -> Detokenizer:
        """Decodes one stream of tokens piece by piece."""
        return Detokenizer(self)


class Detokenizer:
    """Decodes token by token; the pieces joined are :meth:`Tokenizer.decode` of all tokens.

    A piece never ends inside a character: bytes that may still become one are kept until it is complete, or known to be
    none. Each call decodes the tokens since the last complete character, and those of the piece before as context.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []  # the context, then the tokens that are not emitted yet
        self._context = 0
        self._context_text = ""

    def push(self, token_id: int) -> str:
        """The text that is certain after one more token; "" if there is none yet."""
        self._ids.append(token_id)
        text = self._tokenizer.decode(self._ids)
        if text.endswith(_REPLACEMENT):
            return ""
        return self._emit(text)

    def finish(self) -> str:
        """The rest; an incomplete character is U+FFFD."""
        return self._emit(self._tokenizer.decode(self._ids))

    def _emit(self, text: str) -> str:
        piece = text[len(self._context_text) :]
        self._ids = self._ids[self._context :]
        self._context = len(self._ids)
        self._context_text = self._tokenizer.decode(self._ids)
        return piece
