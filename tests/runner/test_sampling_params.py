"""Sampling parameters as users write them: one stop string, pydantic models, vLLM's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from specdec_hal.errors import RequestError
from specdec_hal.request import ParameterError
from specdec_hal.runner import SamplingParams


class Address(BaseModel):
    street: str


class Person(BaseModel):
    name: str
    address: Address


class NoSchema(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    call: Callable[[], int]


def test_names_of_vllm() -> None:
    assert SamplingParams(max_tokens=7, min_tokens=2) == SamplingParams(max_new_tokens=7, min_new_tokens=2)
    assert SamplingParams(top_k=-1).top_k == 0


def test_one_stop_string() -> None:
    assert SamplingParams(stop="6") == SamplingParams(stop=["6"])


def test_a_pydantic_model_is_its_schema() -> None:
    schema = Person.model_json_schema()
    assert "$defs" in schema
    for structured in (Person, {"json_schema": Person}, {"json_schema": schema}):
        found = SamplingParams(structured=structured).structured
        assert found is not None and found.kind == ("json_schema", schema)


def test_updated_values_are_checked() -> None:
    params = SamplingParams(temperature=0.5, max_tokens=7, thinking={"max_tokens": 3})
    assert params.updated(max_tokens=9, stop="a") == SamplingParams(
        temperature=0.5, max_new_tokens=9, stop=["a"], thinking={"max_tokens": 3}
    )
    assert params.updated() == params
    with pytest.raises(ParameterError, match=r"max_new_tokens: expected an integer in 1\.\."):
        params.updated(max_tokens=0)
    with pytest.raises(ParameterError, match="max_tokens: another name of 'max_new_tokens'"):
        params.updated(max_tokens=1, max_new_tokens=1)
    with pytest.raises(ValidationError):
        params.max_tokens = 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_tokens": 7, "max_new_tokens": 8}, "max_tokens: another name of 'max_new_tokens', which is given too"),
        ({"max_tokens": None}, "max_new_tokens: expected an integer in 1..1048576, got null"),
        ({"stop": ""}, "stop[0]: expected a non-empty string, got ''"),
        ({"stop": b"a"}, "stop: expected a list with a non-empty string per item, got b'a'"),
        ({"top_k": -2}, "top_k: expected an integer in 0..2147483647, got -2"),
        ({"structured": int}, "structured.json_schema: expected a mapping or a string or null, got <class 'int'>"),
        ({"structured": {"json_schema": 5}}, "structured.json_schema: expected a mapping or a string or null, got 5"),
        ({"structured": {"json_schema": "\ud800"}}, "structured.json_schema: expected Unicode text, got half of"),
        ({"structured": NoSchema}, "structured.json_schema: expected a model with a JSON schema, got NoSchema: "),
        ({"structured": {"type": "object"}}, "structured.type: unknown key; allowed: json_schema, "),
        ({"structured": {"regex": 5}}, "structured.regex: expected a string or null, got 5"),
        ({"structured_outputs": {"json": {}}}, "structured_outputs: unknown key; did you mean 'structured'?"),
    ],
)
def test_refusals_name_the_key_once(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**values)
    assert str(caught.value).startswith(f"sampling parameter {message}")
    assert str(caught.value).count("sampling parameter") == 1
