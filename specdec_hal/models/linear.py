"""Products with weights and RMS norms on CPUs, by the native library: a row's bits depend on no other row.

``native/linear.h`` describes the layout of weights and the order of sums.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from specdec_hal.tensors.native import load_library

Array = npt.NDArray[np.float32]

_CHUNK = 16 << 20  # floats


class Weight(NamedTuple):
    """A weight [outputs, K] as `multiply` reads it: float32 [panels, K, rows of a panel]."""

    panels: Array
    outputs: int


class Weights:
    """Packs weights side by side into large arrays, which NumPy asks the system to hold in huge pages."""

    def __init__(self) -> None:
        self._rest = np.empty(0, np.float32)

    def pack(self, weight: Array) -> Weight:
        """A weight [N, K]; it may be in any order of memory."""
        outputs, inputs = weight.shape
        shape = -(-outputs // panel()), inputs, panel()
        size = int(np.prod(shape))
        if size > self._rest.size:
            self._rest = np.empty(max(size, _CHUNK), np.float32)
        taken, self._rest = self._rest[:size], self._rest[size:]
        packed = Weight(taken.reshape(shape), outputs)
        replace(packed, weight)
        return packed


def replace(packed: Weight, weight: Array) -> None:
    """Pack another weight of the same shape into the same memory."""
    panels, (outputs, inputs) = packed.panels, weight.shape
    whole = outputs // panel()
    panels[:whole] = weight[: whole * panel()].reshape(whole, panel(), inputs).transpose(0, 2, 1)
    if rest := outputs - whole * panel():
        panels[whole, :, :rest] = weight[whole * panel() :].T
        panels[whole, :, rest:] = 0


def unpack(packed: Weight) -> Array:
    """A copy of the weight [N, K]."""
    panels, inputs, width = packed.panels.shape
    return packed.panels.transpose(0, 2, 1).reshape(panels * width, inputs)[: packed.outputs]


@cache
def panel() -> int:
    """Rows of a panel."""
    return int(_library()["linear_panel"]())


def multiply(x: Any, weight: Weight, bias: Any | None, residual: Any | None, threads: int, out: Any) -> Any:
    """out [.., N] = x [.., K] weight^T + `bias` [N] + `residual` [.., N].

    Tensors are those of any framework, float32, contiguous, on the host.
    """
    multiply, best = function("linear")
    multiply(x, weight.panels, bias, residual, threads, best, out)
    return out


def rms_norm(x: Any, weight: Any, epsilon: float, out: Any) -> Any:
    """out [.., N] = RMSNorm of x [.., N]; tensors as in `multiply`."""
    norm, best = function("rms_norm")
    norm(x, weight, epsilon, best, out)
    return out


def _library() -> Any:
    return load_library("specdec_cpu")


@cache
def function(name: str) -> tuple[Any, int]:
    """An exported function, and the fastest instruction set of this machine."""
    return _library()[name], _library()["instruction_sets"]() - 1
