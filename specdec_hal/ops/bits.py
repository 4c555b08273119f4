"""Equality to the last bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_KINDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def same_bits(actual: Array, expected: Array) -> NDArray[np.bool_]:
    """Element by element. Signed zeros differ; all NaNs are equal, as the contract leaves their payload open."""
    kind = _KINDS[actual.itemsize]
    equal = np.ascontiguousarray(actual).view(kind) == np.ascontiguousarray(expected).view(kind)
    if actual.dtype.kind == "f":
        equal = equal | (np.isnan(actual) & np.isnan(expected))
    elif actual.dtype == np.uint16:  # bfloat16
        equal = equal | (((actual & 0x7FFF) > 0x7F80) & ((expected & 0x7FFF) > 0x7F80))
    result: NDArray[np.bool_] = np.asarray(equal)
    return result


def difference(actual: Mapping[str, Array], expected: Mapping[str, Array]) -> str | None:
    """The first difference, or None. Names, dtypes and shapes must agree."""
    if actual.keys() != expected.keys():
        return f"tensors {sorted(actual)} instead of {sorted(expected)}"
    for name, array in actual.items():
        wanted = expected[name]
        if (array.dtype, array.shape) != (wanted.dtype, wanted.shape):
            return f"'{name}' is {array.dtype} {array.shape}, expected {wanted.dtype} {wanted.shape}"
        wrong = np.argwhere(~same_bits(array, wanted))
        if len(wrong):
            index = tuple(int(i) for i in wrong[0])
            count = f" ({len(wrong)} of {array.size} differ)" if len(wrong) > 1 else ""
            return f"'{name}'{list(index)} is {array[index]!s}, expected {wanted[index]!s}{count}"
    return None
