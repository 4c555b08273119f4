"""Text to token ids and back: a thin wrapper over the `tokenizers` library, and piecewise decoding for streaming."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

from specdec_hal.errors import RequestError
from specdec_hal.models.checkpoint import (
    MAX_TOKENIZER,
    TOKENIZER,
    checkpoint_error,
    parse_json,
    read_file,
    read_token_ids,
)
from specdec_hal.models.detokenizer import (
    LONGEST,
    REPLACEMENT,
    ByteDetokenizer,
    Detokenizer,
    Ids,
    KnownTexts,
    PrefixDetokenizer,
    byte_letters,
)
from specdec_hal.text import clip, one_line, short

_PREFIX = re.compile(rb'"continuing_subword_prefix"\s*:\s*"')

_log = logging.getLogger("specdec_hal")
_PIECES = 1 << 16
"""Cached texts of tokens after other tokens: at most some 20 MiB."""

_BYTE_OF_LETTER = byte_letters()


class Tokenizer:
    """The tokenizer of a checkpoint folder, checked against its config.json.

    CheckpointError if a file is missing or corrupt, or if the model lacks an embedding for an id. Embeddings without a
    token (padded vocabularies) decode to "".
    """

    def __init__(self, folder: str | Path) -> None:
        from tokenizers import Tokenizer as Library

        config = read_token_ids(folder)
        file, text = read_file(folder, TOKENIZER, MAX_TOKENIZER)
        _check_merges(file, text)
        try:
            self._library: Any = _guarded(lambda: Library.from_str(text.decode("utf-8")))
        except _LibraryError as error:
            got = f"{len(text)} bytes that are not ({error})"
            raise checkpoint_error(file, "a tokenizer of the tokenizers library", got, "download it again") from error
        self._take_whole_texts(file)
        ids = self._library.get_vocab(with_added_tokens=True).values()
        self.vocab_size: int = max(ids, default=-1) + 1
        hint = "use the tokenizer and config.json of one and the same checkpoint"
        if self.vocab_size > config.vocab_size:
            expected = f"token ids in 0..{config.vocab_size - 1}, the model's vocabulary"
            raise checkpoint_error(file, expected, f"ids up to {self.vocab_size - 1}", hint)
        self.bos_token_id = config.bos_token_id
        self.eos_token_ids = config.eos_token_ids
        self.eos_token_id = config.eos_token_ids[0] if config.eos_token_ids else None
        for token in (*self.eos_token_ids, *([] if self.bos_token_id is None else [self.bos_token_id])):
            if self._library.id_to_token(token) is None:
                raise checkpoint_error(file, f"a token for id {token} (bos or eos of the checkpoint)", "none", hint)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. Special tokens in it become one token each.

        `add_special_tokens`: let the post-processor of tokenizer.json add some, such as a BOS; False for a rendered
        chat template.
        """
        encode = self._library.encode_batch_fast  # lets other threads run meanwhile, as `encode` does not
        try:
            ids: list[int] = _guarded(lambda: encode([text], add_special_tokens=add_special_tokens)[0].ids)
        except _LibraryError as error:
            raise cannot_encode(text, error) from error
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens included; invalid UTF-8 becomes U+FFFD."""
        try:
            # Of a batch, which does not hold the interpreter's lock.
            (text,) = _guarded(lambda: self._library.decode_batch([ids], skip_special_tokens=False))
        except _LibraryError as error:
            raise RequestError(f"the tokenizer cannot decode {short(ids)}: {clip(str(error), 300)}") from error
        return str(text)

    def detokenizer(
        self,
        prompt: Sequence[int] = (),
        *,
        skip_special_tokens: bool = False,
        spaces_between_special_tokens: bool = True,
    ) -> Detokenizer:
        """A detokenizer of one stream of tokens that continues `prompt`.

        `spaces_between_special_tokens` False: no space between consecutive special tokens.
        """
        made = self._detokenizer(self.special_ids if skip_special_tokens else frozenset())
        if isinstance(made, PrefixDetokenizer) and not (skip_special_tokens or spaces_between_special_tokens):
            made.added = self._added_closely
        made.prime(prompt)
        return made

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes (UTF-8, possibly partial) that a token adds inside a text; none for an id without a token."""
        text = self._library.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None
        if text is None:
            return b""
        if self._byte_level:
            try:
                return bytes(map(_BYTE_OF_LETTER.__getitem__, text))
            except KeyError:  # an added token is its text
                return str(text).encode("utf-8")
        if token_id in self._byte_of:
            return bytes([self._byte_of[token_id]])
        return self._added((token_id,), (token_id,)).encode("utf-8")

    def _take_whole_texts(self, file: Path) -> None:
        """Prompts are neither truncated nor padded, whatever tokenizer.json says."""
        for name, off in ("truncation", self._library.no_truncation), ("padding", self._library.no_padding):
            if (settings := getattr(self._library, name)) is not None:
                _log.warning("%s: its %s is not applied: %s", file, name, short(settings))
                off()

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Tokens without text but with a meaning for the model, such as end tokens."""
        tokens = self._library.get_added_tokens_decoder()
        return frozenset(id_ for id_, token in tokens.items() if token.special)

    def _detokenizer(self, silent: frozenset[int]) -> Detokenizer:
        if self._byte_level:
            return ByteDetokenizer(self.vocab_size, silent, self._bytes_of, self._texts(silent))
        patience = LONGEST - 1 if "ByteLevel" in self._decoders else 0
        return PrefixDetokenizer(self.vocab_size, silent, self._added, self._byte_of, patience)

    @property
    def known_texts(self) -> KnownTexts | None:
        """Texts of tokens for detokenizers that skip special ones; None if they depend on earlier tokens."""
        return self._texts(self.special_ids) if self._byte_level else None

    @cached_property
    def _texts(self) -> Callable[[frozenset[int]], KnownTexts]:
        """Texts of tokens, for a set of silent ones."""
        return cache(lambda silent: KnownTexts(self.vocab_size, silent, self._bytes_of))

    @cached_property
    def _decoders(self) -> list[str]:
        """The types of the library's decoders, in order."""
        return [] if self._library.decoder is None else list(_types(json.loads(self._library.decoder.__getstate__())))

    @cached_property
    def _byte_level(self) -> bool:
        return {*self._decoders} - {"Fuse"} == {"ByteLevel"}

    @cached_property
    def _byte_of(self) -> dict[int, int]:
        """The bytes that tokens of byte fallback stand for."""
        if "ByteFallback" not in self._decoders:
            return {}
        names = ((f"<0x{byte:{form}}>", byte) for byte in range(256) for form in ("02X", "02x"))
        found = ((self._library.token_to_id(name), byte) for name, byte in names)
        return {id_: byte for id_, byte in found if id_ is not None}

    @cached_property
    def _bytes_of(self) -> Callable[[int], bytes]:
        return cache(self.token_bytes)

    @cached_property
    def _added(self) -> Callable[[Ids, Ids], str]:
        """The text that tokens add after other tokens, cached as pairs recur."""

        def added(context: Ids, ids: Ids) -> str:
            try:
                return self.decode((*context, *ids))[len(self.decode(context)) :]
            except RequestError as error:  # else it would end the step and all requests
                _log.error("%s; its text is U+FFFD", error)
                return REPLACEMENT

        return lru_cache(_PIECES)(added)

    def _added_closely(self, context: Ids, ids: Ids) -> str:
        """As `_added`, but without a space between consecutive special tokens."""
        if context and {context[-1], *ids} <= self.special_ids:
            return "".join(map(self._library.id_to_token, ids))
        return self._added(context, ids)


def cannot_encode(text: str, error: Exception) -> RequestError:
    """The error for a text that the tokenizer refuses."""
    halves = any("\ud800" <= char <= "\udfff" for char in text)
    reason = "it has half of a surrogate pair; replace it" if halves else clip(str(error), 300)
    return RequestError(f"the tokenizer cannot encode {short(text)}: {reason}")


class _LibraryError(Exception):
    """The library refused, or panicked."""


def _guarded(call: Callable[[], Any]) -> Any:
    """The result of a library call, which raises plain Exception, or BaseException for Rust panics."""
    try:
        return call()
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise _LibraryError(one_line(error)) from error


def _types(decoder: dict[str, Any]) -> Iterator[str]:
    if decoder["type"] != "Sequence":
        yield decoder["type"]
    for part in decoder.get("decoders", ()):
        yield from _types(part)


def _check_merges(file: Path, text: bytes) -> None:
    """Refuse merges without the model's prefix, for which the library aborts the process."""
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
