"""Reading a configuration: a YAML file, overrides such as ``sampling.temperature=0.8``, or a mapping.

One rule for relative paths: those in a file are relative to the file's folder, those in an override to the working
directory. So ``path: ../models/tiny-py-lm`` in ``configs/`` means the same wherever the program is started.
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from specdec_hal import registry as registry_module
from specdec_hal.config import problems as wording
from specdec_hal.config.schema import OVERRIDE, Config, origin
from specdec_hal.errors import ConfigError
from specdec_hal.plugins import one_line
from specdec_hal.registry import Registry


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

    Raises ConfigError, one line per problem, each ``file:key: message`` (``--set:key: message`` for an override).
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
    if not isinstance(data, Mapping):
        raise ConfigError(f"{source}: expected a mapping with the keys {wording.keys(Config)}, got {wording.got(data)}")
    registry = registry or registry_module.default
    merged = _anchor({**data}, Path(base))
    overridden = [_override(merged, text) for text in overrides]
    try:
        config = Config.model_validate(merged, context={"registry": registry})
    except ValidationError as error:
        found = wording.problems(error, Config)
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


def _override(data: dict[str, Any], text: str) -> str:
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
    if key[0] == "model":
        data.update(_anchor(data, Path.cwd()))
    return ".".join(key)


def _anchor(data: dict[str, Any], base: Path) -> dict[str, Any]:
    """`data` with a relative model.path made absolute."""
    model = data.get("model")
    if not isinstance(model, Mapping):
        return data
    path = model.get("path")
    if not isinstance(path, str) or not path:
        return data
    return {**data, "model": {**model, "path": str((base / Path(path).expanduser()).resolve())}}
