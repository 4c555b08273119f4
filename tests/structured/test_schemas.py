"""Random schemas: a text that ends under the grammar of one is valid by the library `jsonschema`."""

from __future__ import annotations

import json
import os
import random
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_hal.config.schema import StructuredOutput, StructuredSettings
from specdec_hal.errors import RequestError
from specdec_hal.structured.backend import GrammarBackend, Matcher, UnsupportedGrammarError
from specdec_hal.structured.compiler import Grammars
from specdec_hal.structured.llguidance import LLGuidance
from specdec_hal.structured.schema import enforceable
from tests.structured.conftest import BYTES, END, xgrammar

EXAMPLES = int(os.environ.get("SCHEMAS", "60"))
"""Schemas for each library."""

counts = st.integers(0, 3)
numbers = st.integers(-30, 30) | st.sampled_from([-2.5, 0.5, 7.25])
names = st.sampled_from(["a", "b c", "é", '"'])
values = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "x", 'a"b', "é", [1], {"k": "v"}])


def some(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keys)


def bounded(low: str, high: str, of: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(some(**{low: of}), some(**{high: of})).map(
        lambda pair: (
            {**pair[0], **pair[1]}
            if not (pair[0] and pair[1]) or pair[0][low] <= pair[1][high]
            else {low: pair[1][high], high: pair[0][low]}
        )
    )


leaves = st.one_of(
    st.sampled_from([{"type": "null"}, {"type": "boolean"}]),
    st.tuples(st.sampled_from(["integer", "number"]), bounded("minimum", "maximum", numbers)).map(
        lambda pair: {"type": pair[0], **pair[1]}
    ),
    some(exclusiveMinimum=numbers).map(lambda keys: {"type": "integer", **keys}),
    bounded("minLength", "maxLength", counts).map(lambda keys: {"type": "string", **keys}),
    st.sampled_from(
        [{"type": "string", "pattern": "^[a-c]{2}$"}, {"type": "string", "format": "date"}, {"minimum": 3}]
    ),
    st.lists(values, min_size=1, max_size=3).map(lambda found: {"enum": found}),
    values.map(lambda value: {"const": value}),
)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    arrays = st.tuples(bounded("minItems", "maxItems", counts), inner).map(
        lambda pair: {"type": "array", "items": pair[1], **pair[0]}
    )
    objects = st.tuples(st.dictionaries(names, inner, min_size=1, max_size=3), st.integers(0, 3)).map(
        lambda pair: {"type": "object", "properties": pair[0], "required": list(pair[0])[: pair[1]]}
    )
    maps = inner.map(lambda one: {"type": "object", "additionalProperties": one, "maxProperties": 3})
    unions = st.lists(inner, min_size=1, max_size=3).map(lambda found: {"anyOf": found})
    return arrays | objects | maps | unions


schemas = st.recursive(leaves, nested, max_leaves=6)


def drawn(matcher: Matcher, seed: int, most: int = 400) -> str | None:
    """A text of tokens that are allowed; it ends when it may and as soon as it can. None if it is too long."""
    choose, text, row = random.Random(seed), b"", np.empty(-(-BYTES.size // 32), np.int32)
    for _ in range(most):
        matcher.mask(row)
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")[: BYTES.size]).tolist()
        assert allowed, f"nothing may follow {text!r}"
        if END in allowed and choose.random() < 0.7:
            return text.decode(errors="replace")  # as a detokenizer does
        closing = [token for token in allowed if token < 256 and chr(token) in '"}]0,']
        token = choose.choice(closing if closing and choose.random() < 0.5 else allowed)
        if token in BYTES.end_ids:
            return text.decode(errors="replace")  # as a detokenizer does
        assert matcher.advance(token)
        text += BYTES.tokens[token]
    return None


def check(backend: GrammarBackend, schema: dict[str, Any], seed: int) -> bool:
    try:
        grammar = backend.compile(StructuredOutput(json_schema=schema))
    except RequestError as error:
        assert "structured.json_schema" in str(error)
        return False
    text = drawn(grammar.matcher(), seed)
    if text is None:
        return False
    jsonschema.validate(json.loads(text), schema)
    return True


FAST = LLGuidance(BYTES)


@settings(max_examples=EXAMPLES)
@given(schema=schemas, seed=st.integers(0, 1 << 30))
def test_texts_of_llguidance_are_valid(schema: dict[str, Any], seed: int) -> None:
    check(FAST, schema, seed)


@pytest.mark.torch
def test_texts_of_xgrammar_are_valid() -> None:
    backend = xgrammar(BYTES)

    @settings(max_examples=EXAMPLES, deadline=None)
    @given(schema=schemas, seed=st.integers(0, 1 << 30))
    def hold(schema: dict[str, Any], seed: int) -> None:
        check(backend, schema, seed)

    hold()


@pytest.mark.torch
def test_texts_of_patterns_and_narrow_bounds_are_valid() -> None:
    grammars = Grammars(StructuredSettings(), lambda: BYTES)
    patterns = [
        '^"a"$',
        r"^\\x$",
        r"^\n$",
        "^[\"'] $",
        "^(日|é)$",
        r"^[ -~]$",
        r"^\w\s\w$",
        "^a$|^b$",
        "^[^a]$",
        '^[a"]$',
    ]
    numbers = [{"minimum": 1e-7, "maximum": 2e-7}, {"exclusiveMinimum": 28, "maximum": 28.5}, {"minimum": 0.1234567}]
    schemas: list[dict[str, Any]] = [{"type": "string", "pattern": pattern} for pattern in patterns]
    for schema in [*schemas, *({"type": "number", **bounds} for bounds in numbers)]:
        grammar = grammars.get(StructuredOutput(json_schema=schema))
        text = next(text for seed in range(20) if (text := drawn(grammar.matcher(), seed)) is not None)
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        ({"properties": {"a": {"const": -(1 << 63)}}}, "#/properties/a/const: llguidance rounds"),
        ({"enum": [[(1 << 53) + 1]]}, "#/enum/0/0: llguidance rounds 9007199254740993"),
        ({"type": "number", "exclusiveMinimum": 28, "maximum": 28.5}, "does not enforce exclusiveMinimum"),
        ({"type": "number", "minimum": -28.5, "exclusiveMaximum": -28}, "does not enforce exclusiveMaximum"),
        ({"type": "object", "minProperties": 2}, "does not enforce minProperties"),
    ],
)
def test_what_llguidance_gets_wrong(schema: dict[str, Any], what: str) -> None:
    with pytest.raises(UnsupportedGrammarError, match=what):
        FAST.compile(StructuredOutput(json_schema=schema))


@pytest.mark.parametrize(
    ("schema", "rewritten"),
    [
        ({"minimum": 2.5, "type": "integer"}, {"type": "integer", "minimum": 3}),
        (
            {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5.5},
            {"type": "integer", "minimum": 4, "maximum": 5},
        ),
        ({"type": "integer", "enum": [1, "a"]}, {"enum": [1]}),
        ({"type": ["integer", "null"], "minimum": 1}, {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}),
        ({"minLength": 1, "title": "x"}, {"type": "string", "pattern": r'^[^"\\\x00-\x1f]{1,}$'}),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
    ],
)
def test_what_xgrammar_knows_in_another_form(schema: dict[str, Any], rewritten: dict[str, Any]) -> None:
    assert enforceable(schema) == rewritten


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        ({"properties": {"a": {"type": "string", "format": "regex"}}}, "#/properties/a: format 'regex'"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf whose schemas may"),
        ({"allOf": [{"type": "integer"}, {"minimum": 1}]}, "allOf with several schemas"),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "null"}}, "additionalProperties"),
        ({"$ref": "#/$defs/a", "minimum": 1, "$defs": {"a": {}}}, "$ref beside 'minimum'"),
        ({"$ref": "other.json"}, "$ref to 'other.json'"),
        ({"type": "number", "multipleOf": 0.5}, "multipleOf"),
        ({"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"pattern": '^"a"$'}, "pattern '^\"a\"$' with '\"', which JSON escapes"),
        ({"pattern": r"^(?:a|[x\n])$"}, "which JSON escapes"),
        ({"pattern": r"^[\x00-\x1f]$"}, "which JSON escapes"),
        ({"items": {"pattern": r"\\d"}}, "#/items: pattern"),
        ({"patternProperties": {'^"': {}}}, "patternProperties '^\"' with"),
        ({"pattern": "(?=a)b"}, "pattern '(?=a)b' with look-around"),
        ({"propertyNames": {"pattern": "(a(?!b))+"}}, "#/propertyNames: pattern '(a(?!b))+' with look-around"),
        ({"pattern": "a$b"}, "pattern 'a$b' with an anchor inside"),
        ({"pattern": "(^a|^b^)$"}, "with an anchor inside"),
        ({"pattern": "[^]"}, "pattern '[^]', of another syntax"),
        ({"type": "number", "minimum": 1e-7, "maximum": 2e-7}, "minimum with no number of 6 decimals"),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e-6}, "exclusiveMinimum with no number"),
        ({"const": {"a": [1 << 63]}}, "const of 9223372036854775808, an integer beyond 64 bits"),
        ({"enum": [1, -1 - (1 << 63)]}, "enum of -9223372036854775809"),
        ({"patternProperties": {"^a$": {}}, "minProperties": 2}, "minProperties without properties"),
        ({"propertyNames": {"pattern": "^[ab]$"}, "minProperties": 2}, "minProperties without properties"),
    ],
)
def test_what_xgrammar_would_ignore(schema: dict[str, Any], what: str) -> None:
    with pytest.raises(UnsupportedGrammarError) as refused:
        enforceable(schema)
    assert what in str(refused.value)
