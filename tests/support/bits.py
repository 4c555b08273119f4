"""Equality to the last bit."""

from __future__ import annotations

import numpy as np

_KINDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def assert_same_bits(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray], context: object = "") -> None:
    """Signed zeros differ; any NaN equals any NaN, whose payload the contract leaves open."""
    assert actual.keys() == expected.keys()
    for name, array in actual.items():
        wanted = expected[name]
        kind = _KINDS[array.itemsize]
        equal = array.view(kind) == wanted.view(kind)
        if array.dtype.kind == "f":
            equal |= np.isnan(array) & np.isnan(wanted)
        elif array.dtype == np.uint16:  # bfloat16
            equal |= ((array & 0x7FFF) > 0x7F80) & ((wanted & 0x7FFF) > 0x7F80)
        assert equal.all(), f"{name} {context}: {array[~equal][:5]}, expected {wanted[~equal][:5]}"
