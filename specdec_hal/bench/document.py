"""Documents that `specdec-hal bench --out` wrote, read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from specdec_hal.errors import ConfigError


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


def read_document(path: Path) -> dict[str, Any]:
    """What :func:`specdec_hal.bench.runner.run_suites` returned; ConfigError for any other file."""
    try:
        text = path.read_bytes()
        _Document.model_validate_json(text)
    except OSError as error:
        got = str(error)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        got = ": ".join([".".join(map(str, first["loc"])), first["msg"]]).removeprefix(": ")
    else:
        document: dict[str, Any] = json.loads(text)
        return document
    raise ConfigError(f"{path}: expected a document written by `bench --out`, got {got}; measure again")
