"""Inputs of a call as a file."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np


def load_inputs(path: Path | str) -> dict[str, Any]:
    """Read a file of :func:`save_inputs`."""
    with np.load(path, allow_pickle=False) as file:
        return {name: value if value.ndim else value.item() for name, value in file.items()}


def save_inputs(path: Path, inputs: Mapping[str, Any]) -> None:
    """Inputs as an .npz file: arrays by name, attributes as 0-d arrays."""
    values = {
        n: v if isinstance(v, np.ndarray) else np.array(v.name if isinstance(v, Enum) else v) for n, v in inputs.items()
    }
    np.savez_compressed(path, **values)  # type: ignore[arg-type]  # its stub takes every name for allow_pickle
