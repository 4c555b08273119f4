"""Recorded traces: every op call of whole decode runs of the embedded model, with its outputs.

``decode.xz`` is written by :mod:`specdec_hal_conformance.traces.record`: an lzma stream of a JSON header and the bytes
of all distinct arrays. A call lists its input and output arrays; replaying it needs neither model nor framework.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.ops import get_op
from specdec_hal.ops.inputs.generate import poison
from specdec_hal.ops.inputs.rows import numpy_dtype
from specdec_hal.ops.spec import Role
from specdec_hal_conformance.case import Case, Inputs, Workspace

Array = NDArray[Any]

FILE = Path(__file__).parent / "decode.xz"
VERSION = 1


@cache
def _recording() -> tuple[list[dict[str, Any]], list[Array]]:
    """(calls, arrays) of the file."""
    data = lzma.decompress(FILE.read_bytes())
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    if header["version"] != VERSION:
        raise ValueError(f"{FILE}: version {header['version']}, expected {VERSION}; record the traces again")
    arrays = []
    at = 8 + size
    for dtype, shape in header["arrays"]:
        count = int(np.prod(shape, dtype=np.int64))
        arrays.append(np.frombuffer(data, dtype, count, at).reshape(shape))
        at += arrays[-1].nbytes
    return header["calls"], arrays


def trace_cases(op: str, count: int) -> Iterator[Case]:
    """Up to `count` recorded calls of an op, spread over the runs."""
    calls, arrays = _recording()
    own = [call for call in calls if call["op"] == op]
    for number in sorted({int(i) for i in np.linspace(0, len(own) - 1, min(count, len(own)))}):
        call = own[number]
        expected = {name: arrays[at] for name, at in call["outputs"].items()}
        yield Case(op, f"trace:{call['run']} {number}", partial(_inputs, call), expected=expected)


def _inputs(call: dict[str, Any], workspace: Workspace) -> Inputs:
    _, arrays = _recording()
    spec = get_op(call["op"])
    inputs: Inputs = {}
    for operand in spec.operands:
        if operand.name in call["inputs"]:
            inputs[operand.name] = arrays[call["inputs"][operand.name]].copy()
        elif operand.name in call["poisoned"]:
            dtype, shape = call["poisoned"][operand.name]
            inputs[operand.name] = np.full(shape, poison(dtype), numpy_dtype(dtype))
    if "index" in call:
        layout = workspace(call["op"], **call["index"])["index"]
        inputs["index"] = np.full(layout.shape, 0xA5, layout.dtype)
    for attr in spec.attrs:
        value = call["attrs"].get(attr.name, attr.default)  # an attribute newer than the recording has its default
        inputs[attr.name] = attr.kind[value] if isinstance(value, str) else value  # type: ignore[index]
    return inputs


def recorded_outputs(op: str) -> tuple[str, ...]:
    """The recorded outputs: all but the index."""
    return tuple(o.name for o in get_op(op).operands if o.role is not Role.IN and o.name != "index")
