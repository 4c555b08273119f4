"""Outputs by hand, so that a case does not depend on the reference alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Close:
    """Values to seven digits, if rounding is not computed by hand."""

    values: Any


@dataclass(frozen=True)
class Where:
    """A property of an output without a unique value, and its wording."""

    says: str
    holds: Callable[[Array], bool]


def unmet(expected: Mapping[str, Any], outputs: Mapping[str, Array]) -> str | None:
    """The first output that differs from the expected one, or None."""
    for name, wanted in expected.items():
        actual = outputs[name]
        values = actual
        if actual.dtype == np.uint16:
            values = (actual.astype(np.uint32) << 16).view(np.float32)
        if isinstance(wanted, Where):
            right = wanted.holds(values)
            text = wanted.says
        elif isinstance(wanted, Close):
            right = np.allclose(values, np.array(wanted.values, np.float64), rtol=1e-6, atol=0)
            text = str(wanted.values)
        else:
            right = np.array_equal(values, np.array(wanted))
            text = str(wanted)
        if not right:
            return f"'{name}' is {values.tolist()}, by hand {text}"
    return None
