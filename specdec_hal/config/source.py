"""Reading a configuration: a YAML file, overrides such as ``sampling.temperature=0.8``, or a mapping.

One rule for relative paths: those in a file are relative to the file's folder, those in an override to the working
directory. So ``path: ../models/tiny-py-lm`` in ``configs/`` means the same wherever the program is started.
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from specdec_hal.config import problems as wording
from specdec_hal.config.schema import NAMES, OVERRIDE, Config, RelativePath, origin
from specdec_hal.config.sections import config_class
from specdec_hal.errors import ConfigError
from specdec_hal.plugins import one_line
from specdec_hal.registry import Registry, or_default


class _Loader(yaml.SafeLoader):
    """Safe YAML in which a key may appear once only, and ``1e-3`` is a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"expected a name as key, got {key!r}", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key '{key}'", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


# YAML 1.1, which PyYAML reads, wants a dot and a signed exponent; nobody who writes 1e-3 means a string.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def load(path: str | os.PathLike[str], overrides: Iterable[str] = (), *, registry: Registry | None = None) -> Config:
    """Read a YAML file, apply the overrides (``a.b=value``, value as YAML; the last of a key wins) and check it all.

    Names are looked up in `registry` (None: that of this process), whose proposers add their sections. Raises
    ConfigError, one line per problem, each ``file:key: message`` (``--set:key: message`` for an override).
    """
    source = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source}: expected UTF-8 text, got {one_line(error)}") from error
    data = _read_yaml(text, source)
    return parse({} if data is None else data, overrides, source=source, base=Path(path).parent, registry=registry)


def parse(
    data: Any,
    overrides: Iterable[str] = (),
    *,
    source: str = "configuration",
    base: str | os.PathLike[str] = ".",
    registry: Registry | None = None,
) -> Config:
    """Check a mapping shaped like a file. `source` names it in messages; relative paths in it are relative to `base`.

    Raises ConfigError as :func:`load` does.
    """
    registry = or_default(registry)
    schema = config_class(registry)
    if not isinstance(data, Mapping):
        raise ConfigError(f"{source}: expected a mapping with the keys {wording.keys(schema)}, got {wording.got(data)}")
    merged = _anchor(data, schema, Path(base))
    overridden = [_override(merged, text, schema) for text in overrides]
    try:
        config = schema.model_validate(merged, context={NAMES: registry})
    except ValidationError as error:
        found = wording.problems(error, schema)
        lines = [f"{origin(key, source, overridden)}:{key}: {message}" for key, message in found]
        raise ConfigError("\n".join(lines)) from None
    config._source, config._overridden = source, tuple(overridden)
    return config


def _read_yaml(text: str, source: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        what = ", ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(f"{source}{where}: {one_line(what)}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date such as 2026-13-01
        raise ConfigError(f"{source}: not YAML: {one_line(error)}") from error


def _override(data: dict[str, Any], text: str, schema: type[BaseModel]) -> str:
    """Apply one ``a.b=value`` to `data`; gives the key."""
    dotted, equals, value = text.partition("=")
    key = tuple(part.strip() for part in dotted.split("."))
    if not equals or not all(key):
        raise ConfigError(f"{OVERRIDE}:{text}: expected KEY=VALUE such as sampling.temperature=0.8")
    *sections, last = key
    node = data
    for depth, section in enumerate(sections):
        child = node.get(section)
        if child is not None and not isinstance(child, Mapping):
            raise ConfigError(
                f"{OVERRIDE}:{dotted}: '{'.'.join(key[: depth + 1])}' is not a section, it holds {wording.got(child)}"
            )
        copy = {**(child or {})}
        node[section] = copy
        node = copy
    node[last] = _read_yaml(value, f"{OVERRIDE}:{dotted}")
    data.update(_anchor(data, schema, Path.cwd()))
    return ".".join(key)


def _anchor(data: Mapping[str, Any], schema: type[BaseModel], base: Path) -> dict[str, Any]:
    """A copy of `data` in which relative paths are absolute, section by section; what is no path stays as it is."""
    anchored = {**data}
    for name, annotation, constraints in wording.fields(schema):
        value = data.get(name)
        if isinstance(value, Mapping) and wording.is_section(annotation):
            anchored[name] = _anchor(value, annotation, base)
        elif isinstance(value, str) and value and _is_path(annotation, constraints):
            anchored[name] = str((base / Path(value).expanduser()).resolve())
    return anchored


def _is_path(annotation: Any, constraints: Iterable[Any]) -> bool:
    """Whether RelativePath marks the type, or one of the types that it is made of."""
    if any(isinstance(constraint, RelativePath) for constraint in constraints):
        return True
    return any(isinstance(part, RelativePath) or _is_path(part, ()) for part in get_args(annotation))
