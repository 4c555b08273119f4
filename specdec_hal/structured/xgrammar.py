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

from numpy.typing import NDArray

from specdec_hal.config.schema import StructuredOutput
from specdec_hal.errors import RequestError
from specdec_hal.structured.backend import MAX_WHITESPACE, Grammar, GrammarBackend, Matcher, Vocabulary
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
        self._vocabulary = vocabulary
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
        return XGrammarGrammar(self._library, compiled, self._vocabulary, tags)


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


def _has_tags(kind: str) -> bool:
    return kind == "structural_tag"


@dataclass(frozen=True)
class XGrammarGrammar(Grammar):
    """See :class:`~specdec_hal.structured.backend.Grammar`."""

    _library: Any
    _compiled: Any
    _vocabulary: Vocabulary
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
        return XGrammarMatcher(self._library.GrammarMatcher(self._compiled), self._vocabulary)


class XGrammarMatcher(Matcher):
    """See :class:`~specdec_hal.structured.backend.Matcher`. The library is not called after an end token, as it warns
    or raises.
    """

    def __init__(self, matcher: Any, vocabulary: Vocabulary) -> None:
        self._matcher, self._vocabulary = matcher, vocabulary

    def mask(self, row: NDArray[Any]) -> None:
        """See :class:`~specdec_hal.structured.backend.Matcher`."""
        if not self._matcher.fill_next_token_bitmask(row[None]):
            row[:] = -1

    def advance(self, token: int) -> bool:
        """See :class:`~specdec_hal.structured.backend.Matcher`."""
        if not 0 <= token < len(self._vocabulary.tokens) or self.finished:
            return False
        return bool(self._matcher.accept_token(token))

    def rollback(self, count: int) -> None:
        """See :class:`~specdec_hal.structured.backend.Matcher`."""
        if count:
            self._matcher.rollback(count)

    @property
    def complete(self) -> bool:
        """See :class:`~specdec_hal.structured.backend.Matcher`."""
        return bool(self._matcher.is_completed())

    @property
    def finished(self) -> bool:
        """See :class:`~specdec_hal.structured.backend.Matcher`."""
        return bool(self._matcher.is_terminated())

    def forced(self) -> list[int]:
        """See :class:`~specdec_hal.structured.backend.Matcher`."""
        if self.finished:
            return []
        text = self._matcher.find_jump_forward_string()
        return self._vocabulary.spelled(text) if text else []


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
