"""JSON schemas for xgrammar: features that it would ignore are refused by name or rewritten.

Determined by trial with xgrammar 0.2.8; tests compare with the library `jsonschema`. The result may be narrower than
the input (objects with properties are closed, as in its strict mode), never wider.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping
from fractions import Fraction
from importlib import import_module
from typing import Any, NoReturn

from specdec_hal.errors import RequestError
from specdec_hal.structured.backend import UnsupportedGrammarError
from specdec_hal.text import short

_ANNOTATIONS = frozenset((
    "$schema", "$id", "$comment", "$anchor", "title", "description", "default", "examples", "deprecated", "readOnly",
    "writeOnly", "discriminator", "$defs", "definitions",
))  # fmt: skip
_KEYWORDS = {
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "object": (
        "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
        "maxProperties",
    ),
}  # fmt: skip
"""Keywords that apply to one type."""
_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_FORMATS = frozenset((
    "date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uri-reference",
    "uri-template", "json-pointer", "relative-json-pointer", "uuid",
))  # fmt: skip
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")
_DECIMALS = 6
"""xgrammar writes bounded numbers with at most so many."""
_patterns: Any = import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
_MAX_DEPTH = 200


def enforceable(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema that xgrammar fully enforces and whose values the given one allows.

    RequestError for an invalid schema; UnsupportedGrammarError, with keyword and path, if xgrammar does not enforce it.
    """
    found: dict[str, Any] = _Schema(schema).rewritten(schema, "#")
    return found


class _Schema:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._depth = 0

    def rewritten(self, schema: Any, at: str) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise RequestError(f"structured.json_schema: {at}: expected a schema, got {short(schema)}")
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise RequestError(f"structured.json_schema: expected at most {_MAX_DEPTH} levels; define parts in $defs")
        try:
            return self._checked(schema, at)
        finally:
            self._depth -= 1

    def _checked(self, schema: Mapping[str, Any], at: str) -> dict[str, Any]:
        own = {key: value for key, value in schema.items() if key not in _ANNOTATIONS}
        result: dict[str, Any] = {
            name: self._each(schema[name], f"{at}/{name}") for name in ("$defs", "definitions") if name in schema
        }
        for key in own:
            if key not in _KNOWN:
                _refuse(at, key)
        for alone in ("$ref", "const", *_ALTERNATIVES):
            if alone in own and len(own) > 1 and not (alone == "const" and own.keys() == {"const", "type"}):
                _refuse(at, alone, f"beside {short(next(key for key in own if key != alone))}")
        if "$ref" in own:
            return result | {"$ref": self._reference(own["$ref"], at)}
        if "const" in own:
            if "type" in own and not _fits(own["const"], _types(own["type"], at)):
                _refuse(at, "const", "of another type")
            _exact(own["const"], at, "const")
            return result | {"const": own["const"]}
        if "enum" in own:
            return result | self._enum(own, at)
        for name in _ALTERNATIVES:
            if name in own:
                return result | self._alternatives(name, own[name], at)
        return result | self._typed(own, at)

    def _each(self, schemas: Any, at: str) -> dict[str, Any]:
        return {key: self.rewritten(one, f"{at}/{key}") for key, one in _object(schemas, at).items()}

    def _reference(self, target: Any, at: str) -> Any:
        if not isinstance(target, str):
            raise RequestError(f"structured.json_schema: {at}/$ref: expected a string, got {short(target)}")
        if target != "#" and not target.startswith("#/"):
            _refuse(at, "$ref", f"to {short(target)}, another document")
        found: Any = self._root
        for part in target.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if not (isinstance(found, Mapping) and key in found):
                raise RequestError(f"structured.json_schema: {at}/$ref: {short(target)} is not in the schema")
            found = found[key]
        return target

    def _enum(self, own: Mapping[str, Any], at: str) -> dict[str, Any]:
        values = own["enum"]
        if not isinstance(values, list) or not values:
            raise RequestError(f"structured.json_schema: {at}/enum: expected values, got {short(values)}")
        if extra := own.keys() - {"enum", "type"}:
            _refuse(at, "enum", f"beside {short(min(extra))}")
        if "type" in own:
            values = [value for value in values if _fits(value, _types(own["type"], at))]
        if not values:
            _refuse(at, "enum", "without a value of its type")
        _exact(values, at, "enum")
        return {"enum": values}

    def _alternatives(self, name: str, branches: Any, at: str) -> dict[str, Any]:
        if not isinstance(branches, list) or not branches:
            raise RequestError(f"structured.json_schema: {at}/{name}: expected schemas, got {short(branches)}")
        found = [self.rewritten(branch, f"{at}/{name}/{number}") for number, branch in enumerate(branches)]
        if len(found) == 1:
            return {"anyOf": found}
        if name == "allOf":
            _refuse(at, name, "with several schemas")
        if name == "oneOf" and not _disjoint([self._resolved(branch) for branch in found]):
            _refuse(
                at, name, "whose schemas may allow the same value (give each another type, or a property with a const)"
            )
        return {"anyOf": found}

    def _resolved(self, schema: Any) -> Any:
        seen = 0
        while isinstance(schema, Mapping) and "$ref" in schema and seen < _MAX_DEPTH:
            seen += 1
            found: Any = self._root
            for part in schema["$ref"].split("/")[1:]:
                found = found[part.replace("~1", "/").replace("~0", "~")]
            schema = found
        return schema

    def _typed(self, own: Mapping[str, Any], at: str) -> dict[str, Any]:
        """One schema, or one per type with its keywords."""
        names = _types(own["type"], at) if "type" in own else _implied(own)
        if not names:
            return {}
        schemas = [self._of_type(name, own, at) for name in names]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}

    def _of_type(self, name: str, own: Mapping[str, Any], at: str) -> dict[str, Any]:
        kind = "number" if name == "integer" else name
        known = {key: own[key] for key in _KEYWORDS.get(kind, ()) if key in own}
        if kind == "number":
            return {"type": name, **_number(name, known, at)}
        if kind == "string":
            return {"type": name, **_string(known, at)}
        if kind == "array":
            return {"type": name, **self._array(known, at)}
        if kind == "object":
            return {"type": name, **self._object(known, at)}
        return {"type": name}

    def _array(self, known: dict[str, Any], at: str) -> dict[str, Any]:
        _counts(known, ("minItems", "maxItems"), at)
        if known.pop("uniqueItems", False) and known.get("maxItems", 2) > 1:
            _refuse(at, "uniqueItems")
        result = dict(known)
        if "items" in known:
            if isinstance(known["items"], list):
                _refuse(at, "items", "that is a list (since draft 2020-12 prefixItems)")
            result["items"] = self.rewritten(known["items"], f"{at}/items")
        if "prefixItems" in known:
            if not isinstance(known["prefixItems"], list):
                raise RequestError(f"structured.json_schema: {at}/prefixItems: expected schemas")
            result["prefixItems"] = [
                self.rewritten(one, f"{at}/prefixItems/{number}") for number, one in enumerate(known["prefixItems"])
            ]
        return result

    def _object(self, known: dict[str, Any], at: str) -> dict[str, Any]:
        _counts(known, ("minProperties", "maxProperties"), at)
        result = dict(known)
        properties = self._each(known.get("properties", {}), f"{at}/properties")
        rest = known.get("additionalProperties")
        if rest is not None:
            result["additionalProperties"] = rest = self.rewritten(rest, f"{at}/additionalProperties")
        required = known.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise RequestError(f"structured.json_schema: {at}/required: expected names, got {short(required)}")
        for name in required:
            if name not in properties:
                if rest is False or "patternProperties" in known or "propertyNames" in known:
                    _refuse(at, "required", f"of {short(name)}, which is none of the properties")
                properties[name] = {} if rest is None else rest
        patterns = _object(known.get("patternProperties", {}), f"{at}/patternProperties")
        if not properties and known.get("minProperties", 0) > 1:  # it would count a key again if it repeats
            _refuse(at, "minProperties", "without properties")
        if "propertyNames" in known:
            if properties or patterns:
                _refuse(at, "propertyNames", "beside other keys' schemas")
            result["propertyNames"] = self.rewritten(known["propertyNames"], f"{at}/propertyNames")
        if patterns:
            if properties or len(patterns) > 1 or rest not in (None, False):
                _refuse(at, "patternProperties", "beside other keys' schemas")
            for pattern in patterns:
                _pattern(pattern, at, "patternProperties")
            result["patternProperties"] = self._each(patterns, f"{at}/patternProperties")
            result["additionalProperties"] = False
        if properties:
            if rest not in (None, False):  # a declared key might repeat with another schema
                _refuse(at, "additionalProperties", "beside properties")
            result |= {"properties": properties, "required": required, "additionalProperties": False}
        return result


_KNOWN = frozenset(
    ("type", "enum", "const", "$ref", *_ALTERNATIVES, *(key for keys in _KEYWORDS.values() for key in keys))
)


def _refuse(at: str, key: str, detail: str = "") -> NoReturn:
    what = f"{key} {detail}".rstrip()
    hint = "leave it out, or use the backend llguidance"
    raise UnsupportedGrammarError(f"structured.json_schema: {at}: {what}: xgrammar does not enforce it; {hint}")


def _object(value: Any, at: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise RequestError(f"structured.json_schema: {at}: expected an object, got {short(value)}")
    return value


def _types(value: Any, at: str) -> list[str]:
    names = value if isinstance(value, list) else [value]
    if not names or any(name not in _TYPES for name in names):
        raise RequestError(
            f"structured.json_schema: {at}/type: expected one of {', '.join(_TYPES)}, got {short(value)}"
        )
    return [name for name in dict.fromkeys(names) if not (name == "integer" and "number" in names)]


def _implied(own: Mapping[str, Any]) -> list[str]:
    """The types implied by the keywords of a schema without `type`; other values, though allowed, are excluded."""
    return [kind for kind, keywords in _KEYWORDS.items() if own.keys() & set(keywords)]


def _fits(value: Any, names: Iterable[str]) -> bool:
    kinds = {
        "null": value is None,
        "boolean": isinstance(value, bool),
        "integer": _integral(value),
        "number": isinstance(value, (int, float)) and not isinstance(value, bool),
        "string": isinstance(value, str),
        "array": isinstance(value, list),
        "object": isinstance(value, dict),
    }
    return any(kinds[name] for name in names)


def _number(name: str, known: dict[str, Any], at: str) -> dict[str, Any]:
    for key, value in known.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value or abs(value) == math.inf:
            raise RequestError(f"structured.json_schema: {at}/{key}: expected a number, got {short(value)}")
        if abs(value) > sys.float_info.max:
            _refuse(at, key, f"of {short(value)}, beyond 64-bit floating point")
    factor = known.get("multipleOf", 1)
    if not _integral(factor) or ("multipleOf" in known and (name != "integer" or len(known) > 1)):
        _refuse(at, "multipleOf", "but of integers without bounds")
    if name == "number":
        least, most = _bounds({key: Fraction(str(value)) * 10**_DECIMALS for key, value in known.items()})
        if least is not None and most is not None and least > most:  # xgrammar would write an empty text
            _refuse(at, next(iter(known)), f"with no number of {_DECIMALS} decimals within the bounds")
        return known
    least, most = _bounds(known)
    result = {"multipleOf": int(factor)} if "multipleOf" in known else {}
    result |= {} if least is None else {"minimum": least}
    return result | ({} if most is None else {"maximum": most})


def _bounds(known: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """The least and the largest integer within bounds."""
    least = [math.ceil(known["minimum"])] if "minimum" in known else []
    least += [math.floor(known["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in known else []
    most = [math.floor(known["maximum"])] if "maximum" in known else []
    most += [math.ceil(known["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in known else []
    return max(least, default=None), min(most, default=None)


def _string(known: dict[str, Any], at: str) -> dict[str, Any]:
    _counts(known, ("minLength", "maxLength"), at)
    pattern = known.get("pattern")
    if pattern is not None and not isinstance(pattern, str):
        raise RequestError(f"structured.json_schema: {at}/pattern: expected a string, got {short(pattern)}")
    if "format" in known and known["format"] not in _FORMATS:
        _refuse(at, "format", short(known["format"]))
    given = [key for key in ("pattern", "format") if key in known]
    if given and len(known) > 1:
        _refuse(at, given[0], f"beside {next(key for key in known if key != given[0])}")
    if pattern is not None:
        _pattern(pattern, at, "pattern")
    if given or not known:
        return known
    # Where it counts characters, it would allow those that JSON escapes.
    most = int(known["maxLength"]) if "maxLength" in known else ""
    return {"pattern": rf'^[^"\\\x00-\x1f]{{{int(known.get("minLength", 0))},{most}}}$'}


def _exact(value: Any, at: str, key: str) -> None:
    """Refuse integers beyond 64 bits, which xgrammar rounds."""
    rest = [value]
    while rest:
        part = rest.pop()
        if isinstance(part, int) and not -(1 << 63) <= part < 1 << 63:
            _refuse(at, key, f"of {short(part)}, an integer beyond 64 bits")
        rest += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()


def _pattern(pattern: str, at: str, key: str) -> None:
    """Refuse what xgrammar ignores in a pattern, and characters that it would write into JSON without their escape.

    Of a class with other characters it leaves these out.
    """
    try:
        parsed = _patterns.parse(pattern)
    except (re.error, ValueError, OverflowError, RecursionError):
        _refuse(at, key, f"{short(pattern)}, of another syntax")

    def check(items: Any, begins: bool, ends: bool) -> None:
        """`begins` and `ends`: whether nothing may come before or after."""
        for number, (code, value) in enumerate(items):
            name, first, last = str(code), begins and number == 0, ends and number == len(items) - 1
            if name == "AT":
                if str(value) not in ("AT_BEGINNING",) * first + ("AT_END",) * last:
                    _refuse(at, key, f"{short(pattern)} with an anchor inside")
            elif name == "BRANCH":
                for branch in value[1]:
                    check(branch, first, last)
            elif name == "SUBPATTERN":
                check(value[3], first, last)
            elif name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
                check(value[2], False, False)
            elif name == "IN":
                check(value if str(value[0][0]) != "NEGATE" else (), False, False)
            elif name in ("LITERAL", "RANGE"):
                low, high = value if name == "RANGE" else (value, value)
                if high < 0x20 or low == high in (0x22, 0x5C):
                    _refuse(at, key, f"{short(pattern)} with {chr(low)!r}, which JSON escapes")
            elif name in ("ASSERT", "ASSERT_NOT"):
                _refuse(at, key, f"{short(pattern)} with look-around")
            elif name not in ("NOT_LITERAL", "CATEGORY", "ANY"):
                _refuse(at, key, f"{short(pattern)} with {name.lower()}")

    try:
        check(parsed, True, True)
    except RecursionError:
        _refuse(at, key, "of too many levels")


def _counts(known: Mapping[str, Any], names: Iterable[str], at: str) -> None:
    for key in names:
        value = known.get(key, 0)
        if not _integral(value) or value < 0:
            raise RequestError(f"structured.json_schema: {at}/{key}: expected a count, got {short(value)}")


def _integral(value: Any) -> bool:
    """Whether this is a whole number, also as a float."""
    return not isinstance(value, bool) and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))


def _disjoint(branches: list[Any]) -> bool:
    """Whether these are disjoint: by type, or by the const of a property required by all."""
    if not all(isinstance(branch, Mapping) for branch in branches):
        return False
    types = [branch.get("type") for branch in branches]
    if all(isinstance(name, str) for name in types):
        kinds = ["number" if name == "integer" else name for name in types]
        if len(set(kinds)) == len(kinds):
            return True
    tags = [_constants(branch) for branch in branches]
    shared = set(tags[0]).intersection(*tags[1:])
    return any(not any(a & b for a, b in _pairs([tag[name] for tag in tags])) for name in shared)


def _constants(branch: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """The values, as text, of required properties with few values."""
    found = {}
    for name, one in (branch.get("properties") or {}).items():
        if name in branch.get("required", ()) and isinstance(one, Mapping):
            values = [one["const"]] if "const" in one else one.get("enum")
            if values and all(isinstance(value, str) for value in values):
                found[name] = frozenset(values)
    return found


def _pairs(items: list[Any]) -> Iterable[tuple[Any, Any]]:
    return ((a, b) for at, a in enumerate(items) for b in items[at + 1 :])
