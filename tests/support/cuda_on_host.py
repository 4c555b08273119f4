"""The CUDA kernels compiled for the CPU (kernels_cuda/host), as a backend of tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from specdec_hal.backends.cuda.backend import CudaBackend
from specdec_hal.backends.cuda.options import Options
from specdec_hal.ops.validate import Call
from specdec_hal.tensors.native import library_path
from specdec_hal.tensors.views import as_numpy

ARCHS = (900, 800)
"""Compute capabilities, times 100, that the sources differ for: with thread block clusters and without."""


def library_of(arch: int) -> str:
    return f"specdec_cuda_host{arch}"


def why_not() -> str:
    """Why these tests cannot run, "" if they can."""
    missing = ", ".join(name for name in map(library_of, ARCHS) if library_path(name) is None)
    return f"{missing}: not built (CMake: SPECDEC_CUDA_HOST=ON, as `make setup` has it)" if missing else ""


class CudaOnHost(CudaBackend):
    """Tensors in host memory; a launch is over when it returns. `seed`: of the order in which threads run."""

    name = "cuda_on_host"
    device = "cpu"

    def __init__(self, arch: int = 900, seed: int = 0) -> None:
        self.native_library = library_of(arch)
        super().__init__(Options())
        self.exports["set_seed"](seed)

    def stream_of(self, call: Call) -> Callable[[], int]:
        return lambda: 0

    def to_host(self, tensor: Any) -> NDArray[Any]:
        return as_numpy(tensor)
