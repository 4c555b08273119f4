"""Run an op of the reference backend on copies of its inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.ops import get_op
from specdec_hal.ops.spec import Role
from tests.support.bits import assert_same_bits

BACKEND = ReferenceBackend()


def copied(inputs: dict[str, Any]) -> dict[str, Any]:
    """The same inputs in memory of their own."""
    return {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in inputs.items()}


def written(op: str, inputs: dict[str, Any]) -> dict[str, np.ndarray]:
    """The tensors among `inputs` that the op writes."""
    operands = get_op(op).by_name
    return {n: a for n, a in inputs.items() if n in operands and operands[n].role is not Role.IN and a is not None}


def run(op: str, inputs: dict[str, Any], backend: Any = BACKEND) -> dict[str, np.ndarray]:
    """The op's outputs for these inputs, which are not changed."""
    call = copied(inputs)
    getattr(backend, op)(**call)
    for name, operand in get_op(op).by_name.items():
        if operand.role is Role.IN and isinstance(inputs.get(name), np.ndarray):
            assert call[name].tobytes() == inputs[name].tobytes(), f"{op} wrote its input '{name}'"
    return written(op, call)


def searched(op: str, inputs: dict[str, Any]) -> dict[str, np.ndarray]:
    """The reference's outputs for a backend that searches histories and leaves the index alone."""
    index = inputs.get("index")
    if index is None or op == "ngram_index_reset":
        return run(op, inputs)
    found = {} if op == "ngram_index_update" else run(op, {**inputs, "index": None})
    return {**found, "index": index}


def assert_same(actual: dict[str, np.ndarray], expected: dict[str, Any], context: object = "") -> None:
    """Every written tensor equals what was expected, to the bit; expected may be lists, of any shape."""
    assert actual.keys() == expected.keys()
    wanted = {}
    for name, array in actual.items():
        value = expected[name]
        wanted[name] = np.asarray(value, getattr(value, "dtype", array.dtype)).reshape(array.shape)
    assert_same_bits(actual, wanted, context)
