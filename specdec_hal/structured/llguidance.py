"""Grammars by llguidance (guidance-ai): fast to compile, with its own limits, and without PyTorch.

Quirks of version 1.9: a refused token does not raise but breaks the matcher, so tokens are checked first. Rollback does
not count the end token, so it is tracked here and not passed to the library.
"""

from __future__ import annotations

import json
import math
import threading
import time
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from typing import Any

from numpy.typing import NDArray

from specdec_hal.config.schema import StructuredOutput
from specdec_hal.errors import RequestError
from specdec_hal.structured.backend import (
    MAX_WHITESPACE,
    Grammar,
    GrammarBackend,
    GrammarFailedError,
    Matcher,
    UnsupportedGrammarError,
    Vocabulary,
    forced_bytes,
)
from specdec_hal.structured.trial import MASK_S, too_slow, try_masks
from specdec_hal.text import clip, one_line

_THREADS = 2
"""Grammars that are compiled at once."""

_UNSUPPORTED = ("Unimplemented keys", "not supported", "Unknown format", "are not disjoint")
"""Marks messages about valid but unenforced schemas."""
_OPPOSITES = {
    "exclusiveMinimum": ("maximum", "exclusiveMaximum"),
    "exclusiveMaximum": ("minimum", "exclusiveMinimum"),
}
"""Exclusive bounds, and the bounds on the other side."""


class LLGuidance(GrammarBackend):
    """See :class:`~specdec_hal.structured.backend.GrammarBackend`."""

    name = "llguidance"

    def __init__(self, vocabulary: Vocabulary, mask_s: float = MASK_S) -> None:
        self._library: Any = import_module("llguidance")
        self._vocabulary, self.mask_s = vocabulary, mask_s
        self._places = threading.Semaphore(_THREADS)
        wrapper = self._library.TokenizerWrapper(_Tokenizer(vocabulary))
        self._tokenizer = self._library.LLTokenizer(wrapper, n_vocab=vocabulary.size)

    def compile(self, wanted: StructuredOutput) -> Grammar:
        """See :class:`~specdec_hal.structured.backend.GrammarBackend`."""
        with self._places:
            return self._compiled(wanted)

    def _compiled(self, wanted: StructuredOutput) -> Grammar:
        kind, value = wanted.kind
        try:
            source = self._source(wanted)
        except RequestError:
            raise
        except ValueError as error:  # the library's own, of a schema with too many levels
            raise _refused(kind, value, one_line(error)) from error
        if wrong := one_line(self._library.LLMatcher.validate_grammar(source, self._tokenizer)):
            raise _refused(kind, value, wrong)
        grammar = self.imported(source)
        if grammar.start.is_error():
            raise _refused(kind, value, _reason(grammar.start))
        # What it forces at the beginning may exceed the library's limits, which breaks it at the first token.
        trial, times = grammar.matcher(), list[float]()
        try:
            for token in trial.forced(1):
                trial.advance(token)
            try_masks(grammar.matcher, self._vocabulary, lambda: times.append(time.thread_time()), forced=False)
        except GrammarFailedError as error:
            raise _refused(kind, value, str(error)) from error
        times.append(time.thread_time())
        if max(after - before for before, after in pairwise(times)) > self.mask_s:
            raise UnsupportedGrammarError(f"structured.{kind}: {too_slow(self.name, self.mask_s)}")
        return grammar

    def imported(self, exported: str) -> LLGrammar:
        """See :class:`~specdec_hal.structured.backend.GrammarBackend`."""
        return LLGrammar(self._library.LLMatcher(self._tokenizer, exported), self._vocabulary, exported)

    def _source(self, wanted: StructuredOutput) -> str:
        make, (kind, value) = self._library.LLMatcher, wanted.kind
        if kind == "regex":
            return str(make.grammar_from_regex(value))
        if kind == "choice":
            return str(make.grammar_from_lark(f"start: {' | '.join(map(json.dumps, value))}"))
        if kind == "grammar":
            try:
                lark = import_module("llguidance.gbnf_to_lark").any_to_lark(value)
            except Exception as error:  # whatever its parser raises
                raise _refused(kind, value, one_line(error)) from error
            return str(make.grammar_from_lark(lark))
        spaces: dict[str, Any] = {"whitespace_pattern": rf"[\x20\x0A\x0D\x09]{{0,{MAX_WHITESPACE}}}"}
        if kind == "structural_tag":
            return self._tagged(value, spaces)
        if not wanted.any_whitespace:
            spaces = {"whitespace_flexible": False, "key_separator": ": ", "item_separator": ", "}
        schema = {"type": "object"} if kind == "json_object" else value
        _check(schema)
        return str(make.grammar_from_json_schema(json.dumps(schema), overrides=spaces))

    def _tagged(self, value: Any, spaces: dict[str, Any]) -> str:
        """Free text with JSON after triggers that are text, which is what the library knows of structural tags."""
        try:
            found = value["format"]
            (trigger,), first = found["triggers"], bool(found.get("stop_after_first"))
            known = found.keys() <= {"type", "triggers", "tags", "stop_after_first"}
            tags = [
                self._library.StructTag(
                    trigger=trigger,
                    begin=tag["begin"],
                    grammar={**tag["content"]["json_schema"], "x-guidance": spaces},
                    end=tag["end"],
                )
                for tag in found["tags"]
                if tag["content"]["type"] == "json_schema" and tag["content"].keys() == {"type", "json_schema"}
            ]
            special = {
                self._vocabulary.tokens[token].decode(errors="replace") for token in self._vocabulary.special_ids
            }
            for tag in found["tags"]:
                _check(tag["content"].get("json_schema"))
            if not known or len(tags) < len(found["tags"]) or found["type"] != "triggered_tags" or trigger in special:
                raise ValueError
            text = self._library.StructTag.to_grammar(tags, assume_special=False)
        except UnsupportedGrammarError:
            raise
        except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
            has = "llguidance has triggered_tags of one trigger that is text, with JSON in them, and no others"
            raise UnsupportedGrammarError(f"structured.structural_tag: {has}; use the backend xgrammar") from error
        if first:
            text = text.replace(")* tag_end", ")\n", 1).replace("start: (", "start: tag_end | (", 1)
        return str(self._library.LLMatcher.grammar_from_lark(text))


def _check(schema: Any) -> None:
    """Refuse what the library gets wrong: it rounds integers beyond 2^53 (-2^63 crashes it), allows an exclusive bound
    that has the integer part of the opposite one, and counts a key for `minProperties` again if it repeats.
    """
    rest: list[tuple[Any, str]] = [(schema, "#")]
    while rest:
        part, at = rest.pop()
        wrong = f"rounds {part}, beyond 2^53" if isinstance(part, int) and abs(part) > 1 << 53 else ""
        if isinstance(part, dict):
            rest += [(one, f"{at}/{name}") for name, one in part.items()]
            if part.get("type") != "integer":
                wrong = next((f"does not enforce {key}" for key in _OPPOSITES if _shared(part, key)), "")
            least, required = part.get("minProperties"), part.get("required")
            known = len(required) if isinstance(required, list) else 0
            more = part.get("additionalProperties") is not False or part.get("patternProperties")
            if more and isinstance(least, int) and least > max(1, known):
                wrong = "does not enforce minProperties, as keys may repeat"
        elif isinstance(part, list):
            rest += [(one, f"{at}/{number}") for number, one in enumerate(part)]
        if wrong:
            hint = "change it, or use the backend xgrammar"
            raise UnsupportedGrammarError(f"structured.json_schema: {at}: llguidance {wrong}; {hint}")


def _shared(schema: dict[str, Any], key: str) -> bool:
    """Whether this exclusive bound has the integer part of an opposite bound."""
    bounds = (schema.get(name) for name in (key, *_OPPOSITES[key]))
    first, *others = (math.trunc(one) if isinstance(one, (int, float)) and abs(one) < 1e300 else None for one in bounds)
    return first is not None and first in others


def _reason(matcher: Any) -> str:
    """Its error, without the dump of the parser after it."""
    return one_line(matcher.get_error()).partition(" <state>")[0]


def _refused(kind: str, value: Any, wrong: str) -> RequestError:
    of = UnsupportedGrammarError if any(words in wrong for words in _UNSUPPORTED) else RequestError
    return of(f"structured.{kind}: llguidance refuses it: {clip(wrong, 500)}")


class _Tokenizer:
    """As its TokenizerWrapper takes one."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        special = sorted(vocabulary.special_ids)
        none = [b""] * (vocabulary.size - len(vocabulary.tokens))
        self.tokens = [*vocabulary.tokens, *none]
        for token in special:  # special tokens must not spell text
            self.tokens[token] = b"\xff" + b"[%d]" % token
        # One that no text ends with stands for none.
        self.eos_token_id = min(vocabulary.end_ids, default=special[0] if special else vocabulary.size - 1)
        self.special_token_ids, self._encode = special, vocabulary.encode

    def __call__(self, text: str) -> list[int]:
        if isinstance(text, bytes):
            raise TypeError("expected a string")
        return self._encode(text)


@dataclass(frozen=True)
class LLGrammar(Grammar):
    """See :class:`~specdec_hal.structured.backend.Grammar`."""

    start: Any
    _vocabulary: Vocabulary
    _source: str
    backend = LLGuidance.name

    @property
    def nbytes(self) -> int:
        """As measured with a text: a JSON schema takes 170 bytes per byte of its source; its automata grow further."""
        return (128 << 10) + 170 * len(self._source)

    @property
    def exported(self) -> Any:
        """See :class:`~specdec_hal.structured.backend.Grammar`."""
        return self._source

    def matcher(self) -> Matcher:
        """See :class:`~specdec_hal.structured.backend.Grammar`."""
        return LLMatcher(self.start.deep_copy(), self._vocabulary)


class LLMatcher(Matcher):
    """See :class:`~specdec_hal.structured.backend.Matcher`."""

    def __init__(self, matcher: Any, vocabulary: Vocabulary) -> None:
        self._matcher, self._vocabulary = matcher, vocabulary
        self._ends, self._size, self._ended = vocabulary.end_ids, len(vocabulary.tokens), False

    def mask(self, row: NDArray[Any]) -> None:
        """See :class:`~specdec_hal.structured.backend.Matcher`."""
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if self._matcher.is_error():
            raise GrammarFailedError(_reason(self._matcher))
        words, complete = row.view("uint32"), self.complete
        for token in self._ends:
            bit = 1 << token % 32
            words[token // 32] = int(words[token // 32]) & ~bit | (bit if complete else 0)

    def advance(self, token: int) -> bool:
        """See :class:`~specdec_hal.structured.backend.Matcher`."""
        if self._ended or not 0 <= token < self._size:
            return False
        if token in self._ends:
            self._ended = self.complete
            return self._ended
        if self._matcher.validate_tokens([token]) == 1 and self._matcher.consume_token(token):
            return True
        if self._matcher.is_error():
            raise GrammarFailedError(_reason(self._matcher))
        return False

    def rollback(self, count: int) -> None:
        """See :class:`~specdec_hal.structured.backend.Matcher`."""
        if count and self._ended:
            self._ended, count = False, count - 1
        if count and not self._matcher.rollback(count):
            raise GrammarFailedError(_reason(self._matcher))

    @property
    def complete(self) -> bool:
        """See :class:`~specdec_hal.structured.backend.Matcher`."""
        return bool(self._matcher.is_accepting())

    @property
    def finished(self) -> bool:
        """See :class:`~specdec_hal.structured.backend.Matcher`."""
        return self._ended

    def forced(self, room: int) -> list[int]:
        """See :class:`~specdec_hal.structured.backend.Matcher`."""
        if self._ended:
            return []
        text = self._matcher.compute_ff_bytes()
        if len(text) > forced_bytes(room):  # the library would tokenise all of it
            return self._vocabulary.begun(text, room)
        return list(self._matcher.compute_ff_tokens())[:room]
