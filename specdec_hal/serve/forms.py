"""Constraints on answers: OpenAI's `response_format`, vLLM's `structured_outputs`, and forced tool calls, as
:class:`~specdec_hal.config.schema.StructuredOutput`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from specdec_hal.config.problems import problems
from specdec_hal.config.schema import Section, StructuredOutput, UnicodeText
from specdec_hal.errors import RequestError
from specdec_hal.output.parsers import ToolParser
from specdec_hal.text import clip, short

Json = dict[str, Any]


class WrongKeyError(RequestError):
    """A wrong value of the body's key `param`."""

    def __init__(self, param: str, message: str) -> None:
        self.param, self.message = param, clip(message)
        super().__init__(f"{param}: {message}")


class Keys(Section):
    """Base of all objects in bodies. Validation stops early: a megabyte may hold 300,000 errors, of which one is
    shown."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_nothing(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        given = {key: value for key, value in data.items() if value is not None}
        known = {field.alias or name for name, field in cls.model_fields.items()}
        unknown = [key for key in given if key not in known]
        for key in unknown[1:]:
            del given[key]
        return given


class JsonSchema(Keys):
    """`schema`: of the answer, always enforced, even without `strict`; `name` and `description` are ignored."""

    name: UnicodeText | None = None
    description: UnicodeText | None = None
    schema_: Json = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Keys):
    """`response_format`. `format`: of a structural tag, in xgrammar's form."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchema | None = None
    format: Json | None = None

    @model_validator(mode="after")
    def _check(self) -> ResponseFormat:
        for kind, key in (("json_schema", "json_schema"), ("structural_tag", "format")):
            if (self.type == kind) != (getattr(self, key) is not None):
                raise ValueError(f"expected {key} with type '{kind}' and no other, got type '{self.type}'")
        return self

    @property
    def wanted(self) -> Json:
        """Keys of a StructuredOutput; none for text."""
        if self.json_schema is not None:
            return {"json_schema": self.json_schema.schema_}
        if self.format is not None:
            return {"structural_tag": {"type": "structural_tag", "format": self.format}}
        return {"json_object": True} if self.type == "json_object" else {}


class TextFormat(Keys):
    """`text.format` of the Responses API."""

    type: Literal["text", "json_object", "json_schema"]
    name: UnicodeText | None = None
    description: UnicodeText | None = None
    schema_: Json | None = Field(None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> TextFormat:
        if (self.type == "json_schema") != (self.schema_ is not None):
            raise ValueError(f"expected schema with type 'json_schema' and no other, got type '{self.type}'")
        return self

    @property
    def response_format(self) -> Json:
        """As a chat has it."""
        if self.type == "json_schema":
            return {"type": self.type, "json_schema": {"name": self.name, "schema": self.schema_}}
        return {"type": self.type}


class StructuredOutputs(Keys):
    """vLLM's `structured_outputs`: exactly one form."""

    json_: Json | UnicodeText | None = Field(None, alias="json")
    regex: UnicodeText | None = None
    choice: list[UnicodeText] | None = None
    grammar: UnicodeText | None = None
    json_object: bool | None = None
    structural_tag: Json | UnicodeText | None = None
    disable_any_whitespace: bool = Field(True, description="false: any white space between elements of JSON")

    @property
    def wanted(self) -> Json:
        """Keys of a StructuredOutput."""
        names = ("regex", "choice", "grammar", "json_object", "structural_tag")
        found = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.json_ is not None:
            found["json_schema"] = self.json_
        return found | {"any_whitespace": not self.disable_any_whitespace}


def structured(param: str, wanted: Mapping[str, Any]) -> StructuredOutput:
    """WrongKeyError for none or several forms. `param`: the body's key that asks for it."""
    try:
        return StructuredOutput(**wanted)
    except ValidationError as error:
        found = "; ".join(f"{key}: {message}" for key, message in problems(error, StructuredOutput))
        raise WrongKeyError(param, found) from error


class FunctionName(Keys):
    """A function by its name."""

    name: UnicodeText


class NamedTool(Keys):
    """`tool_choice` with the name of the function to call."""

    type: Literal["function"]
    function: FunctionName


def arguments_of(tools: Sequence[Mapping[str, Any]], name: str) -> Json:
    """The schema of a function's arguments; WrongKeyError for an unknown function."""
    for tool in tools:
        if tool["function"]["name"] == name:
            return _parameters(tool["function"])
    names = ", ".join(tool["function"]["name"] for tool in tools)
    raise WrongKeyError("tool_choice", f"expected one of the tools ({names}), got {short(name)}")


def calls_of(tools: Sequence[Mapping[str, Any]], parallel: bool) -> Json:
    """The schema of a nonempty list of calls of these tools; `parallel` False: exactly one."""
    definitions: Json = {}
    items = []
    for number, tool in enumerate(tools):
        schema = _hoisted(_parameters(tool["function"]), f"tool{number}.", definitions)
        properties = {"name": {"const": tool["function"]["name"]}, "parameters": schema}
        required = ["name", "parameters"]
        items.append({"type": "object", "properties": properties, "required": required, "additionalProperties": False})
    calls: Json = {"type": "array", "minItems": 1, "items": items[0] if len(items) == 1 else {"anyOf": items}}
    if not parallel:
        calls["maxItems"] = 1
    return {"$defs": definitions, **calls} if definitions else calls


def strict_calls(tools: Sequence[Mapping[str, Any]], parser: type[ToolParser], parallel: bool) -> Json:
    """Keys of a StructuredOutput: free text in which what begins as the parser's calls do is a call of these tools.

    Functions that are `strict` have the arguments of their schema, others any object. `parallel` False: nothing
    follows a call.
    """
    tags = [
        {
            "begin": before + json.dumps(tool["function"]["name"])[1:-1] + between,
            "content": {"type": "json_schema", "json_schema": _parameters(tool["function"], only_strict=True)},
            "end": after,
        }
        for tool in tools
        for before, between, after in parser.written
    ]
    choice = {"type": "triggered_tags", "triggers": [parser.trigger], "tags": tags, "stop_after_first": not parallel}
    return {"structural_tag": {"type": "structural_tag", "format": choice}}


def _parameters(function: Mapping[str, Any], *, only_strict: bool = False) -> Json:
    given = function.get("parameters")
    if only_strict and not function.get("strict"):
        return {"type": "object"}
    return {"type": "object", "properties": {}, "additionalProperties": False} if not given else dict(given)


def _hoisted(schema: Any, prefix: str, definitions: Json) -> Any:
    """Embed a schema in another: its definitions move to `definitions`, with prefixed names."""
    if isinstance(schema, list):
        return [_hoisted(one, prefix, definitions) for one in schema]
    if not isinstance(schema, dict):
        return schema
    result = {}
    for key, value in schema.items():
        if key in ("$defs", "definitions") and isinstance(value, dict):
            definitions.update({f"{prefix}{name}": _hoisted(one, prefix, definitions) for name, one in value.items()})
        elif key == "$ref" and isinstance(value, str):
            found = value.removeprefix("#/$defs/").removeprefix("#/definitions/")
            result[key] = value if found == value else f"#/$defs/{prefix}{found}"
        elif key in ("enum", "const", "default", "examples"):
            result[key] = value
        else:
            result[key] = _hoisted(value, prefix, definitions)
    return result
