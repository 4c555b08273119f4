"""Short grammars whose masks take a library seconds or for ever: tried before they are served."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

import pytest

from specdec_hal.config.schema import StructuredOutput, StructuredSettings
from specdec_hal.errors import RequestError
from specdec_hal.structured.backend import GrammarBackend, UnsupportedGrammarError, Vocabulary
from specdec_hal.structured.compiler import Grammars
from specdec_hal.structured.llguidance import LLGuidance
from specdec_hal.tensors.memory import heap_bytes
from tests.structured.conftest import BYTES, PERSON

DOUBLED = "\n".join(f"a{i} ::= a{i - 1} a{i - 1}" for i in range(1, 41))
EXPLODE: dict[str, dict[str, Any]] = {
    "options": {"regex": "(((.?){9}){9}){9}"},
    "doubled": {"grammar": f"root ::= a40\na0 ::= [a-z]*\n{DOUBLED}"},
    "alternatives": {"grammar": "root ::= item*\nitem ::= " + " | ".join(['[a-z]+ " "', "[a-z]"] * 150)},
}
PROPERTIES: dict[str, Any] = {"type": "object", "properties": {f"k{n}": {"type": "string"} for n in range(400)}}


def nested(levels: int) -> dict[str, Any]:
    return reduce(lambda items, _: {"type": "array", "items": items}, range(levels), {"type": "integer"})


def large(vocabulary: Vocabulary, size: int) -> Vocabulary:
    """One with as many tokens of letters as a model's, since a library's time grows with them."""
    letters = [bytes(97 + n // 26**at % 26 for at in range(3)) for n in range(size - len(vocabulary.tokens))]
    return Vocabulary(
        size, [*vocabulary.tokens, *letters], vocabulary.special_ids, vocabulary.end_ids, vocabulary.encode
    )


@pytest.fixture(scope="module")
def auto() -> Iterator[Grammars]:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    yield Grammars(StructuredSettings(mask_budget_s=0.03), lambda: large(BYTES, 4096))


@pytest.mark.torch
@pytest.mark.parametrize("name", EXPLODE)
def test_the_other_library_serves_or_refuses_what_takes_one_too_long(auto: Grammars, name: str) -> None:
    wanted = StructuredOutput(**EXPLODE[name])
    budget = r"xgrammar takes more than 0\.03 s of processor time \(structured\.mask_budget_s\) for a mask"
    with pytest.raises(UnsupportedGrammarError, match=budget):
        auto.backend("xgrammar").compile(wanted)
    if name == "doubled":
        with pytest.raises(RequestError, match=r"llguidance refuses it: .*too big"):
            auto.get(wanted)
    else:
        assert auto.get(wanted).backend == "llguidance"
    assert auto.get(StructuredOutput(json_schema=PERSON)).backend == "xgrammar"


@pytest.mark.torch
def test_a_legal_schema_of_400_optional_properties_is_served(auto: Grammars) -> None:
    """Its serialized form took 13 s and 54 MB."""
    grammar = auto.get(StructuredOutput(json_schema=PROPERTIES))
    assert grammar.backend == "xgrammar" and grammar.nbytes < 8 << 20
    matcher = grammar.matcher()
    assert all(map(matcher.advance, b'{"k3": "a", "k399": "b"}')) and matcher.complete


@pytest.mark.torch
def test_the_other_library_serves_what_takes_too_long_to_compile() -> None:
    grammars = Grammars(StructuredSettings(compile_timeout_s=0.001), lambda: BYTES)
    assert grammars.get(StructuredOutput(json_schema=PROPERTIES)).backend == "llguidance"
    alone = Grammars(StructuredSettings(compile_timeout_s=0.001, backend="xgrammar"), lambda: BYTES)
    with pytest.raises(RequestError, match=r"has taken more than 0\.001 s \(structured\.compile_timeout_s\)"):
        alone.get(StructuredOutput(json_schema=PROPERTIES))


def test_a_budget_is_for_each_mask_of_either_library() -> None:
    with pytest.raises(UnsupportedGrammarError, match=r"llguidance takes more than 1e-09 s of processor time"):
        LLGuidance(BYTES, 1e-9).compile(StructuredOutput(regex="[a-z]+"))


def test_what_was_too_slow_after_its_trial_is_served_by_the_other_library() -> None:
    grammars = Grammars(StructuredSettings(backend="llguidance"), lambda: BYTES)
    wanted = StructuredOutput(regex="[a-z]+")
    grammar = grammars.get(wanted)
    why = grammars.too_slow(wanted, grammar.backend)
    assert why.startswith("llguidance has taken more than 2 s (structured.mask_timeout_s) for the masks of a step")
    with pytest.raises(UnsupportedGrammarError, match=r"structured\.regex: llguidance has taken more than 2 s"):
        grammars.get(wanted)
    assert grammars.get(StructuredOutput(regex="[a-y]+")).backend == "llguidance" and grammars.nbytes < 1 << 20


@pytest.mark.parametrize("levels", [300, 900])
def test_a_deep_schema_is_refused(backend: GrammarBackend, monkeypatch: pytest.MonkeyPatch, levels: int) -> None:
    grammars = Grammars(StructuredSettings(backend=backend.name), lambda: BYTES)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"structured\.json_schema: .*([Tt]oo many|levels|recursion)"):
        grammars.get(StructuredOutput(json_schema=nested(levels)))
    assert grammars.get(StructuredOutput(json_schema=nested(40))).backend == backend.name


@pytest.mark.parametrize("bound", [10**400, -(10**400), float("inf"), float("nan"), 1e308])
@pytest.mark.parametrize("key", ["maximum", "exclusiveMinimum", "multipleOf", "maxLength", "minItems", "enum", "const"])
def test_numbers_without_end_are_refused_or_served(backend: GrammarBackend, key: str, bound: float) -> None:
    kind = {"maxLength": "string", "minItems": "array"}.get(key, "integer")
    schema = {"type": kind, key: [bound] if key == "enum" else bound}
    try:
        backend.compile(StructuredOutput(json_schema=schema))
    except RequestError as error:
        assert "structured.json_schema: " in str(error)


@pytest.mark.parametrize(
    "wanted", [{"json_schema": PERSON}, {"json_schema": PROPERTIES}, {"regex": "[a-z]{3}(one|two)*"}]
)
def test_the_cache_counts_what_a_grammar_takes(backend: GrammarBackend, wanted: dict[str, Any]) -> None:
    grammar = backend.compile(StructuredOutput(**wanted))
    before = heap_bytes()
    copies = [backend.imported(grammar.exported) for _ in range(10)]
    taken = (heap_bytes() - before) / len(copies)
    assert taken / 2 < grammar.nbytes < 2 * taken + (256 << 10)
