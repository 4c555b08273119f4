"""Grammars by xgrammar (MLC). It needs PyTorch, which it imports.

A regular expression may take unlimited time and memory in C++, for its compilation and for its masks. So a separate
process compiles a grammar first, and makes some masks. Then this process compiles it again, since transferring the
result by `CompiledGrammar.serialize_json` takes up to 60 times as long, and up to 20 times its memory.
"""

from __future__ import annotations

import json
import pickle
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
    UnsupportedGrammarError,
    Vocabulary,
    forced_bytes,
)
from specdec_hal.structured.schema import enforceable
from specdec_hal.structured.trial import MASK_S, too_slow, try_masks
from specdec_hal.structured.worker import CrashedError, TimeLimitError, Worker
from specdec_hal.tensors.memory import heap_bytes
from specdec_hal.text import clip

_MEMORY = 2 << 30
"""Memory limit of compilation, in bytes."""
_PROCESSES = 2
"""Grammars that are compiled at once; as many more that take longer than _QUICK_S."""
_QUICK_S = 0.5
_OWN_BYTES = 4096
"""What a grammar takes beside the library's heap."""
_NICE = 5
"""So that they do not slow down the engine."""

Source = tuple[str, Any, bool]
"""The kind and value of a grammar, and whether it has `any_whitespace`."""


class XGrammar(GrammarBackend):
    """See :class:`~specdec_hal.structured.backend.GrammarBackend`. `compile_s`: longest time to compile a grammar.
    `mask_s`: most processor time for a mask, tried on some texts.
    """

    name = "xgrammar"

    def __init__(self, vocabulary: Vocabulary, compile_s: float, mask_s: float = MASK_S) -> None:
        self._library = _Library(vocabulary)
        known = vocabulary.size, list(vocabulary.tokens), vocabulary.special_ids, vocabulary.end_ids
        task = "structured: compiling the grammar"
        self._worker = Worker(
            __name__, pickle.dumps(known), task, _MEMORY, processes=_PROCESSES, quick_s=_QUICK_S, nice=_NICE
        )
        self.compile_s, self.mask_s = compile_s, mask_s

    def compile(self, wanted: StructuredOutput) -> Grammar:
        """See :class:`~specdec_hal.structured.backend.GrammarBackend`."""
        kind, value = wanted.kind
        if kind == "json_schema":
            value = enforceable(value)
        elif _has_tags(kind):
            value = _enforceable_parts(value)
        source = kind, value, wanted.any_whitespace
        try:
            answer = self._worker.ask_here(json.dumps([*source, self.mask_s]).encode(), self.compile_s)
        except CrashedError as error:
            wrong = too_slow(self.name, self.mask_s) if error.signal == signal.SIGPROF else str(error)
            raise UnsupportedGrammarError(f"structured.{kind}: {wrong}") from error
        except TimeLimitError as error:
            raise UnsupportedGrammarError(f"{error} (structured.compile_timeout_s)") from error
        if answer[:1] == b"!":
            raise RequestError(f"structured.{kind}: {answer[1:].decode()}")
        return self._library.grammar(source, int(answer))

    def imported(self, exported: Any) -> Grammar:
        """See :class:`~specdec_hal.structured.backend.GrammarBackend`."""
        return self._library.grammar(*exported)


class _Library:
    """xgrammar over a vocabulary, in this process or in one that tries grammars."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._xgrammar: Any = import_module("xgrammar")
        self._vocabulary, self._others = vocabulary, _others(vocabulary)
        # Structural tags may hold special tokens by their text, such as <tool_call>; no other text may.
        self._info = {tags: self._tokenizer_info(tags) for tags in (False, True)}

    def _tokenizer_info(self, with_special: bool) -> Any:
        tokens = list(self._vocabulary.tokens)
        for token in self._vocabulary.special_ids if not with_special else self._vocabulary.end_ids:
            tokens[token] = b""
        kind = self._xgrammar.VocabType.RAW
        ends = sorted(self._vocabulary.end_ids)
        return self._xgrammar.TokenizerInfo(tokens, kind, vocab_size=self._vocabulary.size, stop_token_ids=ends)

    def grammar(self, source: Source, nbytes: int = 0) -> XGrammarGrammar:
        """Compile a grammar. RuntimeError and others of :data:`_REFUSALS` if the library refuses it."""
        info = self._info[_has_tags(source[0])]
        compiled = _compile(self._xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False), *source)
        return XGrammarGrammar(self._xgrammar, compiled, self._vocabulary, self._others, source, nbytes)


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
    _source: Source
    _nbytes: int
    backend = XGrammar.name

    @property
    def nbytes(self) -> int:
        """The heap that it took where it was compiled alone; the library counts as little as half of it."""
        return self._nbytes

    @property
    def exported(self) -> Any:
        """See :class:`~specdec_hal.structured.backend.Grammar`."""
        return self._source, self._nbytes

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


# ---- the processes that try grammars

_REFUSALS = (RuntimeError, ValueError, TypeError, MemoryError, RecursionError)


def _vocabulary(setup: bytes) -> Vocabulary:
    size, tokens, special_ids, end_ids = pickle.loads(setup)
    return Vocabulary(size, tokens, special_ids, end_ids, lambda text: [])


def answerer(setup: bytes) -> Callable[[bytes], bytes]:
    """In the process: compiles and tries a grammar for :meth:`XGrammar.compile`. Returns the size of its heap."""
    library = _Library(_vocabulary(setup))

    def answer(question: bytes) -> bytes:
        kind, value, any_whitespace, mask_s = json.loads(question)
        try:
            before = heap_bytes()
            grammar = library.grammar((kind, value, any_whitespace))
            nbytes = max(heap_bytes() - before, 0) + _OWN_BYTES
        except _REFUSALS as error:
            return b"!" + clip(_wording(error), 500).encode()
        limit = partial(signal.setitimer, signal.ITIMER_PROF, mask_s)
        try_masks(grammar.matcher, library._vocabulary, limit, forced=True)
        signal.setitimer(signal.ITIMER_PROF, 0)
        return b"%d" % nbytes

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
