"""Messages about invalid configurations: key, expected and given value.

Expectations come from the schema (type, range, allowed values).
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Annotated, Any, Literal, TypeGuard, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from specdec_hal.text import did_you_mean, one_line, short

Key = tuple[str, ...]
Schema = type[BaseModel]

_KINDS = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", list: "a list", dict: "a mapping"}


def dotted(key: Key) -> str:
    """``("sampling", "stop", "[1]")`` as ``sampling.stop[1]``."""
    return ".".join(key).replace(".[", "[")


def keys(schema: Schema) -> str:
    """The keys of a section, for messages."""
    return ", ".join(_fields(schema))


def fields(schema: Schema) -> Iterator[tuple[str, Any, list[Any]]]:
    """The keys of a section, each with its type and its constraints."""
    for name, field in _fields(schema).items():
        yield name, field.annotation, field.metadata


def got(value: object) -> str:
    """A value as written by the user, with its type if that may be the mistake."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    kind = _KINDS.get(type(value), type(value).__name__)
    return short(value) if type(value) in (int, float) else f"{short(value)} ({kind})"


def problems(error: ValidationError, schema: Schema) -> Iterator[tuple[str, str]]:
    """Every problem pydantic found, as (dotted key, message)."""
    for key, detail in _by_key(error, schema).items():
        context = detail.get("ctx", {})
        if detail["type"] == "default_factory_not_called":
            continue  # the default follows from another, invalid key
        if detail["type"] == "combination":
            yield from ((dotted((*key, part)), message) for part, message in context["problems"])
        elif detail["type"] == "unknown_name":
            yield dotted(key), context["detail"]
        elif detail["type"] in ("extra_forbidden", "invalid_key"):
            yield dotted(key), _unknown_key(key, schema)
        elif detail["type"] == "missing":
            yield dotted(key), f"{_expected(key, schema) or 'expected a value'}, got no such key; add it"
        elif detail["type"] in ("value_error", "assertion_error"):  # a plug-in's check has its own message
            yield dotted(key), one_line(context["error"])
        else:
            yield dotted(key), _wrong_value(key, schema, detail)


def _by_key(error: ValidationError, schema: Schema) -> dict[Key, Mapping[str, Any]]:
    """One problem per key. Of a union, that of the member that took the value's type, or else of its first member."""
    found: dict[Key, Mapping[str, Any]] = {}
    for detail in error.errors(include_url=False):
        key: Key = ()
        for part in detail["loc"]:
            annotation, _ = _annotation(key, schema) or (None, [])
            if len(_members(annotation)) < 2:  # in a union, the part names a member
                key = (*key, f"[{part}]" if isinstance(part, int) else str(part))
        if key not in found or not detail["type"].endswith("_type"):
            found[key] = detail
    return found


def _members(annotation: Any) -> list[Any]:
    """The types of a union, without null."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else ()
    return [part for part in parts if part is not type(None)]


def _optional(annotation: Any) -> tuple[Any, list[Any]]:
    """The type beside null, if the annotation is such a pair, and the constraints it carried."""
    members = _members(annotation)
    return _bare(members[0]) if len(members) == 1 else (annotation, [])


def _fields(schema: Schema) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in schema.model_fields.items()}


def _unknown_key(key: Key, schema: Schema) -> str:
    *path, last = key
    section = _section(tuple(path), schema)
    if section is None:
        return "unknown key; remove it"
    siblings = _fields(section)
    hint = did_you_mean(last, siblings)
    if not hint:  # right name, wrong section?
        elsewhere = {dotted(full) for full in _leaves(schema) if full[-1] == last}
        hint = f"; did you mean '{sorted(elsewhere)[0]}'?" if elsewhere else ""
    return f"unknown key{hint}; allowed: {', '.join(siblings)}"


def _leaves(schema: Schema, prefix: Key = ()) -> Iterator[Key]:
    for name, field in _fields(schema).items():
        annotation = field.annotation
        if is_section(annotation):
            yield from _leaves(annotation, (*prefix, name))
        else:
            yield (*prefix, name)


def is_section(annotation: object) -> TypeGuard[Schema]:
    """Whether a key holds a section."""
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _section(path: Key, schema: Schema) -> Schema | None:
    annotation, _ = _annotation(path, schema) or (None, [])
    annotation, _ = _optional(annotation)
    return annotation if is_section(annotation) else None


def _annotation(key: Key, schema: Schema) -> tuple[Any, list[Any]] | None:
    """The type and constraints at a key; list items are ``[i]``. None for types that our sections do not use."""
    annotation: Any = schema
    constraints: list[Any] = []
    for part in key:
        annotation, _ = _optional(annotation)
        if get_origin(annotation) is dict:  # free-form below here
            break
        if part.startswith("[") and get_origin(annotation) is list:
            (annotation,) = get_args(annotation)
            annotation, constraints = _bare(annotation)
        elif is_section(annotation) and part in _fields(annotation):
            field = _fields(annotation)[part]
            annotation, constraints = _bare(field.annotation)
            constraints = [*field.metadata, *constraints]
        else:
            return None
    return annotation, constraints


def _bare(annotation: Any) -> tuple[Any, list[Any]]:
    """An annotation without ``Annotated``, and the constraints it carried."""
    if get_origin(annotation) is not Annotated:
        return annotation, []
    bare, *extras = get_args(annotation)
    constraints: list[Any] = []
    for extra in extras:
        constraints += extra.metadata if isinstance(extra, FieldInfo) else [extra]
    return bare, constraints


def _wrong_value(key: Key, schema: Schema, detail: Mapping[str, Any]) -> str:
    value, said = detail["input"], one_line(detail["msg"])
    expected = _expected(key, schema) or f"{said[:1].lower()}{said[1:]}"
    annotation, _ = _annotation(key, schema) or (None, [])
    choices = _choices(annotation)
    if choices and isinstance(value, str):
        return f"{expected}, got {short(value)}{did_you_mean(value, choices)}"
    return f"{expected}, got {got(value)}"


def _expected(key: Key, schema: Schema) -> str | None:
    """``expected ...``; None for types without wording here (pydantic has its own)."""
    found = _annotation(key, schema)
    described = _describe(*found) if found is not None else None
    return None if described is None else f"expected {described}"


def _choices(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(choice) for choice in get_args(annotation)]
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [member.name.lower() for member in annotation]
    return []


def _describe(annotation: Any, constraints: list[Any]) -> str | None:
    if get_origin(annotation) in (Union, types.UnionType):
        parts = [_bare(part) for part in get_args(annotation)]
        described = ["null" if part is type(None) else _describe(part, constraints + own) for part, own in parts]
        return None if None in described else " or ".join(map(str, described))
    if choices := _choices(annotation):
        return f"one of {', '.join(choices)}"
    if is_section(annotation):
        return f"a mapping with the keys {keys(annotation)}"
    if get_origin(annotation) is list:
        item = _describe(*_bare(get_args(annotation)[0]))
        return None if item is None else f"a list with {item} per item"
    if annotation is bool:
        return "true or false"
    if annotation is str and any(getattr(item, "min_length", 0) for item in constraints):
        return "a non-empty string"
    kind = _KINDS.get(get_origin(annotation) or annotation)
    return None if kind is None else f"{kind}{_range(constraints)}"


def _range(constraints: list[Any]) -> str:
    limit: Mapping[str, Any] = {
        name: getattr(item, name) for item in constraints for name in ("ge", "gt", "le", "lt") if hasattr(item, name)
    }
    if "ge" in limit and "le" in limit:
        return f" in {limit['ge']}..{limit['le']}"
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    return "".join(f" {'and ' if i else ''}{signs[name]} {limit[name]}" for i, name in enumerate(limit))
