"""Launch every CUDA op on small inputs, generated and hostile, for compute-sanitizer to watch.

usage: compute-sanitizer --tool memcheck --error-exitcode 9 python3 tools/sanitize.py [OP...]

Every tensor has an allocation of its own, to the byte, so that an access after its end is one that the tool sees. What
an op only writes is left uninitialised, so that initcheck sees an op that reads it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import cupy
import numpy as np

from specdec_hal.backends.cuda.backend import CudaBackend
from specdec_hal.backends.cuda.options import Options
from specdec_hal.ops import get_op
from specdec_hal.ops.inputs.generate import cases, generate, hostile
from specdec_hal.ops.spec import Role

CASES = 30  # of each kind
WIDE = {"M": 3, "S": 3, "V": 3001, "L": 700}
WIDEST = {"M": 1, "S": 2, "V": 1 << 18, "L": 700}  # clusters of 8, and rows that do not fit in shared memory


def inputs_of(op: str, backend: CudaBackend) -> Iterator[dict[str, Any]]:
    """Small calls of every kind, and wide ones."""
    for make in (generate, hostile):
        for options in cases(op, CASES):
            yield make(op, workspace=backend.workspace, **options)
        yield make(op, CASES, workspace=backend.workspace, **WIDE)
    if "V" in backend.capabilities[op].limits:
        yield generate(op, CASES, workspace=backend.workspace, **WIDEST)


def on_device(op: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """Exact allocations; only what an op reads is filled."""
    operands = get_op(op).by_name
    call = dict(inputs)
    for name, value in inputs.items():
        if isinstance(value, np.ndarray):
            call[name] = cupy.empty(value.shape, value.dtype)
            if operands[name].role is not Role.OUT:
                call[name].set(np.ascontiguousarray(value))
    return call


def main(ops: list[str]) -> None:
    """Run."""
    cupy.cuda.set_allocator(None)
    backend = CudaBackend(Options())
    launches = 0
    for op in ops or list(backend.capabilities):
        for inputs in inputs_of(op, backend):
            backend.bind(op, **on_device(op, inputs))()
            cupy.cuda.Device().synchronize()
            launches += 1
    print(f"{launches} calls of {len(ops or backend.capabilities)} ops")


if __name__ == "__main__":
    main(sys.argv[1:])
