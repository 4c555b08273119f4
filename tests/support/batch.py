"""The command `batch` over a model that repeats its prompt."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specdec_hal.cli import main

Model = Callable[..., SimpleNamespace]


Capture = pytest.CaptureFixture[str]


def batch(options: tuple[str, ...], prompts: Path, output: Path, *more: str) -> int:
    return main(["batch", *options, "--input", str(prompts), "--output", str(output), *more])


def rows_of(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "results.jsonl").read_text().splitlines()]
