"""The CPU as a backend: binds the kernels of ``libspecdec_cpu.so`` to the op contract."""

from __future__ import annotations

from specdec_hal.backends.cpu.options import LIBRARY, Options
from specdec_hal.backends.host import NativeHostBackend


class CpuBackend(NativeHostBackend):
    """C++ on the host's cores."""

    name = "cpu"

    def __init__(self, options: Options) -> None:
        super().__init__(LIBRARY, (options.most_threads(),))
