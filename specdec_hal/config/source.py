"""Reading a configuration: a YAML file, overrides such as ``sampling.temperature=0.8``, or a mapping.

One rule for relative paths: those in a file are relative to the file's folder, those in an override to the working
directory. So ``path: ../models/tiny-py-lm`` in ``configs/`` means the same in every working directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from specdec_hal.config import hub
from specdec_hal.config import problems as wording
from specdec_hal.config.files import read_regular
from specdec_hal.config.reader import MAX_DEPTH, check_text, read_yaml
from specdec_hal.config.schema import (
    ARGUMENT,
    NAMES,
    OVERRIDE,
    Config,
    EngineSettings,
    ModelSettings,
    RelativePath,
    RunnerSettings,
    origin,
)
from specdec_hal.config.sections import config_class
from specdec_hal.errors import ConfigError
from specdec_hal.plugin.registry import Registry, or_default
from specdec_hal.text import clip, did_you_mean, one_line, renamed

MAX_BYTES = 1 << 18
"""Of a configuration file."""
MAX_PROBLEMS = 20
"""Most problems reported at once; suggestions take time."""
_BARE: dict[str, type[BaseModel]] = {"model": ModelSettings, "runner": RunnerSettings, "engine": EngineSettings}
"""Sections whose keys are also keyword arguments."""
_VLLM_NAMES = {
    "tensor_parallel_size": "tensor_parallel",
    "num_gpu_blocks_override": "num_kv_blocks",
    "speculative_config": "speculative",
}
_VLLM_SPECULATIVE = {"model": "path"}
"""Arguments of vLLM's LLM for ours, and keys of its `speculative_config`."""
_NEAR = {"enforce_eager": "graph", "gpu_memory_utilization": "num_kv_blocks", "seed": "sampling"}
"""Our arguments for others of vLLM's, whose values mean something else."""
LINE_LIMIT, KEY_LIMIT = 500, 150
"""Most bytes of an override, and of its key."""


Override = str | tuple[str, Any]
"""``a.b=value`` with the value as YAML, or a dotted key and its value."""


def load(
    path: str | os.PathLike[str], overrides: Iterable[Override] = (), *, registry: Registry | None = None
) -> Config:
    """Read a YAML file, apply the overrides (the last of a key wins) and check it all.

    Names are looked up in `registry` (None: the process's), whose proposers add their sections. Raises
    ConfigError, one line per problem, each ``file:key: message``; for an override ``--set:key: message``, or
    ``argument:key: message`` for a keyword argument.
    """
    source = os.fspath(path)
    try:
        text = read_regular(path, MAX_BYTES).decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source}: expected UTF-8 text, got {one_line(error)}") from error
    data = read_yaml(text, source)
    return parse({} if data is None else data, overrides, source=source, base=Path(path).parent, registry=registry)


def parse(
    data: Any,
    overrides: Iterable[Override] = (),
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
    overridden = dict(_override(merged, one, schema) for one in overrides)
    model = merged.get("model")
    download = isinstance(model, Mapping) and model.get("download") is True

    def find(key: str, name: str) -> Path | None:
        try:
            return hub.find(name, download)
        except hub.DownloadError as error:
            raise ConfigError(_line(origin(key, source, overridden), key, str(error))) from error

    merged = _of_hub(merged, schema, find)
    try:
        config = schema.model_validate(merged, context={NAMES: registry})
    except ValidationError as error:
        found = islice(wording.problems(error, schema), MAX_PROBLEMS)
        lines = [_line(origin(key, source, overridden), key, message) for key, message in found]
        if error.error_count() > MAX_PROBLEMS:
            lines.append(f"{source}: and more problems; the first {MAX_PROBLEMS} are above")
        raise ConfigError("\n".join(lines)) from None
    config._source, config._overridden = source, overridden
    return config


def changed(config: Config, overrides: Iterable[Override], registry: Registry | None = None) -> Config:
    """Another configuration with these overrides, checked as :func:`parse` does."""
    return parse(config.as_json(), overrides, source=config._source, registry=registry)


def _line(source: str, key: str, message: str) -> str:
    return clip(one_line(f"{source}:{clip(key, KEY_LIMIT)}: {message}"), LINE_LIMIT)


def arguments(given: Mapping[str, Any], registry: Registry | None = None) -> list[Override]:
    """Keyword arguments as overrides: a section with a mapping of some of its keys, or a key of one of :data:`_BARE`.

    Some of vLLM's names work too (:data:`_VLLM_NAMES`). ConfigError for a name that is none of these, or for a value
    under both of its names.
    """
    schema = config_class(or_default(registry))
    bare = {key: f"{name}.{key}" for name, section in _BARE.items() for key in section.model_fields}
    found: list[Override] = []
    for name, value in _ours(given, _VLLM_NAMES).items():
        if name == "speculative" and isinstance(value, Mapping):
            value = _ours(value, _VLLM_SPECULATIVE, "speculative.")
        if name in bare:
            found.append((bare[name], value))
        elif name in schema.model_fields:
            found += _leaves(name, value, schema.model_fields[name].annotation)
        else:
            near = f"; did you mean '{_NEAR[name]}'?" if name in _NEAR else ""
            hint = near or did_you_mean(name, [*schema.model_fields, *bare])
            expected = f"a section ({wording.keys(schema)}) or a key of {', '.join(_BARE)}"
            raise ConfigError(f"{ARGUMENT}:{clip(name, KEY_LIMIT)}: unknown{hint}; expected {expected}")
    return found


def _ours(given: Mapping[str, Any], names: Mapping[str, str], section: str = "") -> dict[str, Any]:
    known, twice = renamed(given, names)
    if twice:
        raise ConfigError("\n".join(f"{ARGUMENT}:{section}{name}: {message}" for name, message in twice))
    return known


def _leaves(key: str, value: Any, annotation: Any) -> Iterator[Override]:
    """A value; a section is split into its keys, so that the others keep their values."""
    if not (
        wording.is_section(annotation) and isinstance(value, Mapping) and all(isinstance(one, str) for one in value)
    ):
        yield key, value
        return
    for name, one in value.items():
        field = annotation.model_fields.get(name)
        yield from _leaves(f"{key}.{name}", one, None if field is None else field.annotation)


def _override(data: dict[str, Any], given: Override, schema: type[BaseModel]) -> tuple[str, str]:
    """Apply an override to `data`; returns the key and the source of its value."""
    label = OVERRIDE if isinstance(given, str) else ARGUMENT
    dotted, equals, text = given.partition("=") if isinstance(given, str) else (given[0], "=", "")
    key = tuple(part.strip() for part in dotted.split("."))
    if not equals or not all(key):
        setting = clip(f"{dotted}{equals}{text}", KEY_LIMIT)
        raise ConfigError(f"{label}:{setting}: expected KEY=VALUE such as sampling.temperature=0.8")
    if len(key) > MAX_DEPTH:
        raise ConfigError(f"{label}:{clip(dotted, KEY_LIMIT)}: expected at most {MAX_DEPTH} names, got {len(key)}")
    check_text(dotted, label)
    *sections, last = key
    node = data
    for depth, section in enumerate(sections):
        child = node.get(section)
        if child is not None and not isinstance(child, Mapping):
            raise ConfigError(
                f"{label}:{dotted}: '{'.'.join(key[: depth + 1])}' is not a section, it holds {wording.got(child)}"
            )
        copy = {**(child or {})}
        node[section] = copy
        node = copy
    node[last] = read_yaml(text, f"{label}:{dotted}") if isinstance(given, str) else given[1]
    data.update(_anchor(data, schema, Path.cwd()))
    return ".".join(key), label


def _anchor(data: Mapping[str, Any], schema: type[BaseModel], base: Path) -> dict[str, Any]:
    """A copy of `data` with absolute paths, section by section."""
    anchored = {**data}
    for name, annotation, constraints in wording.fields(schema):
        value = data.get(name)
        if isinstance(value, Mapping) and wording.is_section(annotation):
            anchored[name] = _anchor(value, annotation, base)
        elif isinstance(value, _MaybeOfHub) or not isinstance(value, str) or not value:
            continue
        elif any(_paths(annotation, constraints)):
            anchored[name] = _absolute(value, base)
            if hub.is_name(value) and not os.path.exists(anchored[name]):
                anchored[name] = _MaybeOfHub(anchored[name])
                anchored[name].hub_name = value
    return anchored


Find = Callable[[str, str], Path | None]


class _MaybeOfHub(str):
    """The absolute path of a file that does not exist, and what was written, which may name a checkpoint on a hub."""

    hub_name: str


def _of_hub(data: Mapping[str, Any], schema: type[BaseModel], find: Find, section: str = "") -> dict[str, Any]:
    """A copy of `data` with the folders of named checkpoints. `find`: of a key and a name; None: no such folder."""
    found = {**data}
    for name, annotation, constraints in wording.fields(schema):
        value = data.get(name)
        if isinstance(value, Mapping) and wording.is_section(annotation):
            found[name] = _of_hub(value, annotation, find, f"{section}{name}.")
        elif isinstance(value, _MaybeOfHub):
            of_hub = any(path.hub for path in _paths(annotation, constraints))
            found[name] = str((of_hub and find(f"{section}{name}", value.hub_name)) or value)
    return found


def _absolute(path: str, base: Path) -> str:
    """The path from `base` with '~' expanded; unchanged if that is impossible, for a later error."""
    try:
        return str((base / Path(path).expanduser()).resolve())
    except (OSError, RuntimeError, ValueError):  # an unknown user, a NUL, a loop of links
        return path


def _paths(annotation: Any, constraints: Iterable[Any]) -> Iterator[RelativePath]:
    """The marks of a type and of its parts."""
    for one in (*constraints, *get_args(annotation)):
        if isinstance(one, RelativePath):
            yield one
        else:
            yield from _paths(one, ())
