"""Equality to the last bit: the conformance suite's, as an assertion."""

from __future__ import annotations

import numpy as np

from specdec_hal.ops.bits import difference


def assert_same_bits(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray], context: object = "") -> None:
    found = difference(actual, expected)
    assert found is None, f"{found} {context}"
