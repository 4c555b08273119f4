"""Both libraries through one interface: masks, end tokens, rollback, refusals."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_hal.config.schema import StructuredOutput, StructuredSettings
from specdec_hal.errors import RequestError
from specdec_hal.models import Tokenizer
from specdec_hal.output.parsers import TOOLS
from specdec_hal.serve.forms import strict_calls
from specdec_hal.structured.backend import Grammar, GrammarBackend, Matcher, UnsupportedGrammarError, Vocabulary
from specdec_hal.structured.compiler import Grammars
from specdec_hal.structured.llguidance import LLGuidance
from tests.structured.conftest import BYTES, END, OTHER_END, PADDED, PERSON, SPECIAL, xgrammar

TINY = Path(__file__).parents[2] / "models/tiny-py-lm"


def compiled(backend: GrammarBackend, **wanted: Any) -> Grammar:
    return backend.compile(StructuredOutput(**wanted))


def allowed(matcher: Matcher) -> set[int]:
    row = np.empty(-(-BYTES.size // 32), np.int32)
    matcher.mask(row)
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")[: BYTES.size]).tolist())


def takes(matcher: Matcher, text: str) -> bool:
    return all(matcher.advance(byte) for byte in text.encode())


def test_a_mask_has_no_special_or_padded_token(backend: GrammarBackend) -> None:
    matcher = compiled(backend, json_schema={"type": "string"}).matcher()
    assert allowed(matcher) == {ord('"'), 260}  # which goes on with a colon
    assert takes(matcher, '"')
    inside = allowed(matcher)
    assert {ord("a"), 261} <= inside and not inside & {END, OTHER_END, SPECIAL, *range(PADDED, 269)}
    assert not any(matcher.advance(token) for token in (SPECIAL, PADDED, 268, 5000, -1, END))
    assert allowed(matcher) == inside


def test_every_end_token_ends_a_complete_text_and_is_rolled_back(backend: GrammarBackend) -> None:
    matcher = compiled(backend, json_schema=PERSON).matcher()
    assert takes(matcher, '{"name": "x", "age": 3') and not matcher.complete
    assert not matcher.advance(END) and not matcher.finished
    before = allowed(matcher)
    assert takes(matcher, "}") and matcher.complete and allowed(matcher) == {END, OTHER_END}
    for end in (END, OTHER_END):
        assert matcher.advance(end) and matcher.finished and not matcher.advance(end) and matcher.forced(8) == []
        matcher.rollback(1)
        assert matcher.complete and not matcher.finished and allowed(matcher) == {END, OTHER_END}
    assert matcher.advance(END)
    matcher.rollback(2)
    assert not matcher.complete and allowed(matcher) == before
    matcher.rollback(0)


def test_what_is_forced_is_drafted(backend: GrammarBackend) -> None:
    grammar = compiled(backend, json_schema=PERSON)
    matcher, other = grammar.matcher(), grammar.matcher()
    text = b"".join(BYTES.tokens[token] for token in matcher.forced(16))
    assert text.startswith(b'{"name":') and takes(matcher, text.decode())
    assert allowed(other) != allowed(matcher)  # one text does not move another


@pytest.mark.parametrize(
    ("wanted", "good", "bad"),
    [
        ({"json_object": True}, '{"a": [1, null]}', "[1]"),
        ({"json_schema": json.dumps(PERSON)}, '{"name": "x", "age": 3}', '{"name": "x"}'),
        ({"json_schema": PERSON, "any_whitespace": True}, '{ "name":"x"\n,"age": 3}', '{"name": 3'),
        ({"regex": "[0-9]{3}(a|é)"}, "123é", "12a"),
        ({"choice": ["ab", 'a"c', "é😀"]}, 'a"c', "abc"),
        ({"choice": ["ab", 'a"c', "é😀"]}, "é😀", "é"),
        ({"grammar": 'root ::= "x" root | "y"'}, "xxy", "xx"),
    ],
)
def test_each_form(backend: GrammarBackend, wanted: dict[str, Any], good: str, bad: str) -> None:
    grammar = compiled(backend, **wanted)
    matcher = grammar.matcher()
    assert takes(matcher, good) and matcher.complete
    matcher = grammar.matcher()
    assert not (takes(matcher, bad) and matcher.complete)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"regex": "([a"}, "structured.regex: .* refuses it: "),
        ({"grammar": "root ::= missing"}, "structured.grammar: .* refuses it: .*missing"),
        ({"json_schema": {"type": "strin"}}, "structured.json_schema: .*(type|strin)"),
        ({"json_schema": {"$ref": "#/$defs/none"}}, "structured.json_schema: .*none"),
    ],
)
def test_what_is_no_grammar(backend: GrammarBackend, wanted: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        compiled(backend, **wanted)
    compiled(backend, regex="a")


@pytest.mark.parametrize("keyword", [{"uniqueItems": True}, {"contains": {"type": "integer"}}, {"not": {}}, {"if": {}}])
def test_keywords_that_would_be_ignored_are_refused_by_name(backend: GrammarBackend, keyword: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedGrammarError, match=next(iter(keyword))):
        compiled(backend, json_schema={"type": "array", **keyword})


@pytest.mark.torch
def test_a_structural_tag_may_hold_a_special_token() -> None:
    tag: dict[str, Any] = {
        "begin": "<tool>",
        "content": {"type": "json_schema", "json_schema": PERSON},
        "end": "</tool>",
    }
    wanted = {"type": "structural_tag", "format": {"type": "tag", **tag}}
    matcher = compiled(xgrammar(BYTES), structural_tag=wanted).matcher()
    assert matcher.advance(SPECIAL) and takes(matcher, '{"name": "x", "age": 3}</tool>') and matcher.complete
    with pytest.raises(UnsupportedGrammarError, match="use the backend xgrammar"):
        compiled(LLGuidance(BYTES), structural_tag=wanted)
    tag["content"] = {"type": "json_schema", "json_schema": {"uniqueItems": True}}
    with pytest.raises(UnsupportedGrammarError, match="uniqueItems"):
        compiled(xgrammar(BYTES), structural_tag={"type": "structural_tag", "format": {"type": "tag", **tag}})


WEATHER: Any = {
    "name": "weather",
    "strict": True,
    "parameters": {"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]},
}


@pytest.mark.parametrize(
    ("parser", "call", "other"),
    [
        ("hermes", '<tool_call>\n{"name": "weather", "arguments": %s}\n</tool_call>', "<tool_call>{"),
        ("llama3_json", '{"name": "weather", "parameters": %s}', '{"name": "'),
        ("mistral", "[TOOL_CALLS]weather[ARGS]%s", "[TOOL_CALLS]"),
        ("mistral", '[TOOL_CALLS][{"name": "weather", "arguments": %s}]', "[TOOL_CALLS]"),
    ],
)
def test_strict_tools_among_free_text(backend: GrammarBackend, parser: str, call: str, other: str) -> None:
    tools = [{"function": WEATHER}, {"function": {"name": "stop"}}]
    grammar = compiled(backend, **strict_calls(tools, TOOLS[parser], parallel=False))
    free, good, stops = grammar.matcher(), grammar.matcher(), grammar.matcher()
    assert takes(free, "So <tool {") and free.complete and takes(free, other) and not free.complete
    assert takes(good, call % '{"days": 3}') and good.complete and allowed(good) == {END, OTHER_END}
    assert takes(stops, (call % '{"a": [1]}').replace("weather", "stop")) and stops.complete
    for bad in (call % '{"days": "3"}', call.replace("weather", "rain") % "{}"):
        assert not takes(grammar.matcher(), "a" + bad)


@pytest.mark.torch
def test_what_takes_too_long_is_ended_alone() -> None:
    backend = xgrammar(BYTES)
    compiled(backend, regex="a")
    backend.compile_s = 0.001  # type: ignore[attr-defined]
    slow = {"type": "object", "properties": {f"k{n}": {"type": "string", "maxLength": n} for n in range(100)}}
    with pytest.raises(RequestError, match=r"compiling the grammar has taken more than 0.001 s"):
        compiled(backend, json_schema=slow)
    backend.compile_s = 60.0  # type: ignore[attr-defined]
    assert compiled(backend, regex="a").matcher().forced(8) == [ord("a")]


class Counting(LLGuidance):
    def __init__(self) -> None:
        self.compiled: list[str] = []
        super().__init__(BYTES)

    def compile(self, wanted: StructuredOutput) -> Grammar:
        self.compiled.append(wanted.kind[1])
        return super().compile(wanted)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Grammars, Counting]]:
    def make(**settings: Any) -> tuple[Grammars, Counting]:
        counting = Counting()
        monkeypatch.setattr("specdec_hal.structured.llguidance.LLGuidance", lambda *given: counting)
        return Grammars(StructuredSettings(**settings), lambda: BYTES), counting

    return make


def test_a_grammar_is_compiled_once(kept: Callable[..., tuple[Grammars, Counting]]) -> None:
    grammars, counting = kept(backend="llguidance")
    for wanted in ("a", "b", "a"):
        grammars.get(StructuredOutput(regex=wanted))
    assert counting.compiled == ["a", "b"]
    assert grammars.get(StructuredOutput(regex="a", after_thinking=True)) is grammars.get(StructuredOutput(regex="a"))


def test_an_old_grammar_makes_room_but_for_who_holds_it(kept: Callable[..., tuple[Grammars, Counting]]) -> None:
    grammars, counting = kept(backend="llguidance", cache_mb=0)
    held = grammars.get(StructuredOutput(regex="a"))
    grammars.get(StructuredOutput(regex="b"))
    assert grammars.get(StructuredOutput(regex="a")) is held and counting.compiled == ["a", "b"]
    grammars.get(StructuredOutput(regex="c"))
    grammars.get(StructuredOutput(regex="b"))
    assert counting.compiled == ["a", "b", "c", "b"]


def test_a_grammar_of_another_process_is_not_compiled(
    backend: GrammarBackend, kept: Callable[..., tuple[Grammars, Counting]]
) -> None:
    """As ranks of tensor parallelism have theirs."""
    grammars, counting = kept(backend="llguidance")
    wanted = StructuredOutput(json_schema=PERSON)
    grammar = backend.compile(wanted)
    sent = pickle.loads(pickle.dumps((wanted, backend.name, grammar.exported)))
    found = grammars.put(*sent)
    assert grammar.backend == backend.name == found.backend and found is not grammar
    assert grammars.get(wanted) is grammars.put(*sent) is found and not counting.compiled
    matcher, other = grammar.matcher(), found.matcher()
    for byte in b'{"name": "x", "age": 3}':
        assert allowed(matcher) == allowed(other) and matcher.advance(byte) and other.advance(byte)
    assert allowed(other) == {END, OTHER_END}


def test_an_error_is_not_kept(kept: Callable[..., tuple[Grammars, Counting]]) -> None:
    grammars, counting = kept(backend="llguidance")
    for _ in range(2):
        with pytest.raises(RequestError):
            grammars.get(StructuredOutput(regex="("))
    assert counting.compiled == ["(", "("]


def test_without_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec_hal.structured.compiler.find_spec", lambda name: None)
    with pytest.raises(RequestError, match=r"needs xgrammar or llguidance; pip install specdec-hal\[structured\]"):
        Grammars(StructuredSettings(), lambda: BYTES).get(StructuredOutput(regex="a"))


@pytest.mark.torch
def test_auto_asks_the_other_library_for_what_the_first_does_not_enforce() -> None:
    grammars = Grammars(StructuredSettings(), lambda: BYTES)
    schema = {"allOf": [{"type": "integer"}, {"minimum": 10}]}
    matcher = grammars.get(StructuredOutput(json_schema=schema)).matcher()
    assert takes(matcher, "1") and not matcher.complete
    with pytest.raises(UnsupportedGrammarError, match=r"uniqueItems: xgrammar.*uniqueItems"):
        grammars.get(StructuredOutput(json_schema={"type": "array", "uniqueItems": True}))


def test_the_embedded_models_tokenizer() -> None:
    tokenizer = Tokenizer(TINY)
    vocabulary = Vocabulary.of(tokenizer, 4096, frozenset(tokenizer.eos_token_ids))
    text = '{"name": "Grüße", "age": 31}'
    matcher = LLGuidance(vocabulary).compile(StructuredOutput(json_schema=PERSON)).matcher()
    assert all(map(matcher.advance, tokenizer.encode(text))) and matcher.complete
    assert vocabulary.spelled(', "age": ') == tokenizer.encode(', "age": ')
