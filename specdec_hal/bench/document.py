"""Read documents of `specdec-hal bench --out` and `compare --json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from specdec_hal.errors import ConfigError
from specdec_hal.text import clip, one_line


class _Pair(BaseModel):
    warm: float | None
    cold: float | None


class _Figures(BaseModel):
    median: float


class _Case(BaseModel):
    suite: str
    group: str
    label: str


class _Failed(_Case):
    error: str


class _Timed(_Case):
    target_us: _Pair
    warm_us: _Figures
    cold_us: _Figures | None = None
    peers_us: dict[str, _Pair] = {}


class _Machine(BaseModel):
    cpu: str
    gpu: str = ""


class _Document(BaseModel):
    backend: str
    commit: str
    machine: _Machine
    rows: list[Annotated[_Failed | _Timed, Field(union_mode="left_to_right")]]


class _Run(BaseModel):
    tokens: int
    seconds: float
    tokens_per_second: float
    steps: int
    tokens_per_step: float | None
    drafted_tokens: int
    accepted_tokens: int
    acceptance_rate: float | None
    acceptance_by_position: list[float]
    seconds_by_stage: dict[str, float]


class _Pooled(BaseModel):
    method: str
    k: int | None = None
    prompts: int
    tokens_per_step: float | None
    tokens_per_step_95: tuple[float, float] | None
    speedup: float
    speedup_95: tuple[float, float] | None
    break_even: float | None = None
    mean_acceptance_length: float | None
    acceptance_by_position: list[float]
    accepted_lengths: list[float] = []


class _Method(_Run):
    prompt: str
    method: str
    k: int | None = None
    speedup: float
    all_speedups: list[float]


class _Difference(BaseModel):
    prompt: str
    run: str
    position: int
    expected: int | None
    got: int | None


class _Compared(BaseModel):
    identical: bool
    repeat: int
    backend: str
    differences: list[_Difference]


class _Sides(_Compared):
    method: str
    speedup: float
    naive: _Run
    spec: _Run


class _Methods(_Compared):
    strategy: str
    temperature: float
    rows: list[_Method]
    pooled: list[_Pooled] = []


def is_comparison(document: Mapping[str, Any]) -> bool:
    """Whether it was written by `compare`; else by `bench`."""
    return "identical" in document


def read_document(path: Path) -> dict[str, Any]:
    """A document of `bench --out` or `compare --json`, or one inside a recorded result.

    ConfigError for any other file; it names the command of a recorded result.
    """
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: expected a JSON document, got {one_line(error)}; name another file") from error
    recorded = found if isinstance(found, dict) else {}
    document = recorded.get("figures", recorded)
    document = document if isinstance(document, dict) else {}
    kind: type[BaseModel] = _Document
    if is_comparison(document):
        kind = _Methods if "rows" in document else _Sides
    try:
        kind.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        got = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        if "rows" not in recorded and (command := recorded.get("command")):
            got = f"a result of `{clip(str(command), 200)}`"
        elif not {"rows", "identical"} & set(document):
            got = f"the keys {clip(', '.join(recorded), 200) or 'of no object'}"
        raise ConfigError(f"{path}: expected a document of `bench --out` or `compare --json`, got {got}") from error
    return document
