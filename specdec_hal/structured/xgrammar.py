"""Grammars by xgrammar (MLC). It needs PyTorch, which it imports.

Compilation runs in a separate process, since a regular expression may take unlimited time and memory in C++. The result
is transferred by `CompiledGrammar.serialize_json`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.config.schema import StructuredOutput
from specdec_hal.errors import RequestError
from specdec_hal.structured.backend import (
    MAX_WHITESPACE,
    Grammar,
    GrammarBackend,
    Matcher,
    Vocabulary,
    forced_bytes,
)
from specdec_hal.structured.schema import enforceable
from specdec_hal.structured.worker import Worker
from specdec_hal.text import clip

_MEMORY = 2 << 30
"""Memory limit of compilation, in bytes."""


class XGrammar(GrammarBackend):
    """See :class:`~specdec_hal.structured.backend.GrammarBackend`."""

    name = "xgrammar"

    def __init__(self, vocabulary: Vocabulary, compile_s: float) -> None:
        self._library: Any = import_module("xgrammar")
        self._vocabulary, self._others = vocabulary, _others(vocabulary)
        # Structural tags may hold special tokens by their text, such as <tool_call>; no other text may.
        self._info = {tags: self._tokenizer_info(tags) for tags in (False, True)}
        setup = json.dumps([self._info[tags].serialize_json() for tags in (False, True)]).encode()
        self._worker, self.compile_s = Worker(__name__, setup, "structured: compiling the grammar", _MEMORY), compile_s
        self._lock = threading.Lock()

    def _tokenizer_info(self, with_special: bool) -> Any:
        tokens = list(self._vocabulary.tokens)
        for token in self._vocabulary.special_ids if not with_special else self._vocabulary.end_ids:
            tokens[token] = b""
        kind = self._library.VocabType.RAW
        ends = sorted(self._vocabulary.end_ids)
        return self._library.TokenizerInfo(tokens, kind, vocab_size=self._vocabulary.size, stop_token_ids=ends)

    def compile(self, wanted: StructuredOutput) -> Grammar:
        """See :class:`~specdec_hal.structured.backend.GrammarBackend`."""
        kind, value = wanted.kind
        if kind == "json_schema":
            value = enforceable(value)
        elif _has_tags(kind):
            value = _enforceable_parts(value)
        question = json.dumps([kind, value, wanted.any_whitespace]).encode()
        with self._lock:
            answer = self._worker.ask_here(question, self.compile_s)
        if answer[:1] == b"!":
            raise RequestError(f"structured.{kind}: {answer[1:].decode()}")
        return self.imported((_has_tags(kind), answer.decode()))

    def imported(self, exported: Any) -> Grammar:
        """See :class:`~specdec_hal.structured.backend.GrammarBackend`."""
        tags, text = exported
        compiled = self._library.CompiledGrammar.deserialize_json(text, self._info[tags])
        return XGrammarGrammar(self._library, compiled, self._vocabulary, self._others, tags)


def _enforceable_parts(tag: Any) -> Any:
    """A structural tag whose JSON is what the library enforces, with no more white space than it may have."""
    if isinstance(tag, list):
        return [_enforceable_parts(one) for one in tag]
    if not isinstance(tag, dict):
        return tag
    if (
        tag.get("type") == "json_schema"
        and isinstance(tag.get("json_schema"), dict)
        and tag.get("style", "json") == "json"
    ):
        return {"max_whitespace_cnt": MAX_WHITESPACE, **tag, "json_schema": enforceable(tag["json_schema"])}
    return {key: _enforceable_parts(value) for key, value in tag.items()}


def _others(vocabulary: Vocabulary) -> NDArray[np.int32]:
    """For each byte, a mask of the tokens that do not begin with it; end tokens begin with none."""
    begin = np.full(-(-vocabulary.size // 32) * 32, -1, np.int16)
    for token, text in enumerate(vocabulary.tokens):
        if text and token not in vocabulary.end_ids:
            begin[token] = text[0]
    return np.stack([np.packbits(begin != byte, bitorder="little").view(np.int32) for byte in range(256)])


def _has_tags(kind: str) -> bool:
    return kind == "structural_tag"


@dataclass(frozen=True)
class XGrammarGrammar(Grammar):
    """See :class:`~specdec_hal.structured.backend.Grammar`."""

    _library: Any
    _compiled: Any
    _vocabulary: Vocabulary
    _others: NDArray[np.int32]
    _tags: bool
    backend = XGrammar.name

    @property
    def nbytes(self) -> int:
        """As the library counts."""
        return int(self._compiled.memory_size_bytes)

    @cached_property
    def exported(self) -> Any:
        """See :class:`~specdec_hal.structured.backend.Grammar`."""
        return self._tags, self._compiled.serialize_json()

    def matcher(self) -> Matcher:
        """See :class:`~specdec_hal.structured.backend.Grammar`."""
        return XGrammarMatcher(self._library.GrammarMatcher(self._compiled), self._vocabulary, self._others)


class XGrammarMatcher(Matcher):
    """See :class:`~specdec_hal.structured.backend.Matcher`. The library is not called after an end token, as it warns
    or raises.

    Nor is its `find_jump_forward_string`, which has no limit: `a{1000000}` takes it 0.1 s each time, and a schema that
    requires itself an endless loop. It also raises for a text that ends inside a character.
    """

    def __init__(self, matcher: Any, vocabulary: Vocabulary, others: NDArray[np.int32]) -> None:
        self._matcher, self._vocabulary, self._others = matcher, vocabulary, others
        self._ends = [0]
        """The number of bytes up to each token."""
        self._text, self._begin = bytearray(), 0
        """What was found to be forced from byte `_begin` on, kept for the next steps."""

    def mask(self, row: NDArray[Any]) -> None:
        """See :class:`~specdec_hal.structured.backend.Matcher`."""
        if not self._matcher.fill_next_token_bitmask(row[None]):
            row[:] = -1

    def advance(self, token: int) -> bool:
        """See :class:`~specdec_hal.structured.backend.Matcher`."""
        if not 0 <= token < len(self._vocabulary.tokens) or self.finished:
            return False
        if not self._matcher.accept_token(token):
            return False
        self._ends.append(self._ends[-1] + len(self._vocabulary.tokens[token]))
        return True

    def rollback(self, count: int) -> None:
        """See :class:`~specdec_hal.structured.backend.Matcher`."""
        if count:
            self._matcher.rollback(count)
            del self._ends[-count:]
            if self._ends[-1] < self._begin:  # other tokens may come before it
                self._text, self._begin = bytearray(), self._ends[-1]

    @property
    def complete(self) -> bool:
        """See :class:`~specdec_hal.structured.backend.Matcher`."""
        return bool(self._matcher.is_completed())

    @property
    def finished(self) -> bool:
        """See :class:`~specdec_hal.structured.backend.Matcher`."""
        return bool(self._matcher.is_terminated())

    def forced(self, room: int) -> list[int]:
        """See :class:`~specdec_hal.structured.backend.Matcher`."""
        if self.finished:
            return []
        at, most = self._ends[-1] - self._begin, forced_bytes(room)
        if at >= len(self._text):
            self._text, self._begin, at = bytearray(), self._ends[-1], 0
        if len(self._text) - at < most:
            self._text += self._forced_after(bytes(self._text[at:]), most)
        return self._vocabulary.begun(bytes(self._text[at : at + most]), room)

    def _forced_after(self, text: bytes, most: int) -> bytes:
        """The bytes forced after `text`, up to `most` with it."""
        matcher, found = self._matcher, bytearray()
        row, rest = np.empty((2, self._others.shape[1]), np.int32)
        if text:
            matcher.accept_string(text)
        while len(text) + len(found) < most and not self._free():
            if not matcher.fill_next_token_bitmask(row[None]) or not row.any():
                break
            word = int((row != 0).argmax())
            token = 32 * word + (int(row[word]) & -int(row[word])).bit_length() - 1
            byte = self._vocabulary.tokens[token][:1] if token < len(self._vocabulary.tokens) else b""
            if not byte or np.bitwise_and(row, self._others[byte[0]], out=rest).any():
                break
            if not matcher.accept_string(byte):  # the token is special, and the grammar asks for it as such
                break
            found += byte
        if steps := bool(text) + len(found):
            matcher.rollback(steps)
        return bytes(found)

    def _free(self) -> bool:
        """Whether two letters may follow; it saves the mask of free text, which takes long."""
        for letter in (b"a", b"e"):
            if not self._matcher.accept_string(letter):
                return False
            self._matcher.rollback(1)
        return True


# ---- the process that compiles


def answerer(setup: bytes) -> Callable[[bytes], bytes]:
    """In the process: compiles for :meth:`XGrammar.compile`."""
    library: Any = import_module("xgrammar")
    plain, tagged = (
        library.GrammarCompiler(library.TokenizerInfo.deserialize_json(info), max_threads=1, cache_enabled=False)
        for info in json.loads(setup)
    )

    def answer(question: bytes) -> bytes:
        kind, value, any_whitespace = json.loads(question)
        try:
            compiled = _compile(tagged if _has_tags(kind) else plain, kind, value, any_whitespace)
            return bytes(compiled.serialize_json().encode())
        except (RuntimeError, ValueError, TypeError, MemoryError, RecursionError) as error:
            return b"!" + clip(_wording(error), 500).encode()

    return answer


def _compile(compiler: Any, kind: str, value: Any, any_whitespace: bool) -> Any:
    spaces = {"max_whitespace_cnt": MAX_WHITESPACE} if any_whitespace else {"any_whitespace": False}
    if kind == "json_object":
        return compiler.compile_json_schema('{"type":"object"}', **spaces)
    if kind == "json_schema":
        return compiler.compile_json_schema(json.dumps(value), **spaces)
    if kind == "regex":
        return compiler.compile_regex(value)
    if kind == "choice":
        return compiler.compile_grammar(f"root ::= {' | '.join(json.dumps(one, ensure_ascii=False) for one in value)}")
    if kind == "grammar":
        return compiler.compile_grammar(value)
    return compiler.compile_structural_tag(json.dumps(value))


def _wording(error: Exception) -> str:
    """The last line of the library's message, without its source location."""
    line = (str(error).strip() or type(error).__name__).splitlines()[-1]
    return f"xgrammar refuses it: {line.rpartition('.cc:')[2].partition(': ')[2] or line}"
