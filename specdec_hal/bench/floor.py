"""The device's limits, measured in the same run: copy bandwidth and an empty launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specdec_hal.bench.timing import GraphTimer

_COPY_BYTES = 2 << 30  # read, and as many written


@dataclass(frozen=True)
class Floor:
    """`bandwidth`: bytes per second of a device-to-device copy, read plus written; the others: us of an empty
    kernel."""

    bandwidth: float
    empty_warm: float
    empty_cold: float

    def microseconds(self, moved: int, *, cold: bool) -> float:
        """The least time to move that many bytes through device memory."""
        return moved / self.bandwidth * 1e6 + (self.empty_cold if cold else self.empty_warm)

    def document(self) -> dict[str, float]:
        """For JSON."""
        return {
            "copy_gb_per_s": round(self.bandwidth / 1e9, 1),
            "empty_kernel_warm_us": round(self.empty_warm, 2),
            "empty_kernel_cold_us": round(self.empty_cold, 2),
        }


def measure_floor(exports: Any, timer: GraphTimer, device: int) -> Floor:
    """`exports` is the CUDA library."""
    import torch

    where = torch.device("cuda", device)
    source, target = (torch.zeros(_COPY_BYTES, dtype=torch.uint8, device=where) for _ in range(2))
    best = float("inf")
    with torch.cuda.device(where):
        for _ in range(12):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            target.copy_(source)
            stop.record()
            torch.cuda.synchronize()
            best = min(best, start.elapsed_time(stop) / 1000)
    empty = exports["empty"](device)
    return Floor(2 * _COPY_BYTES / best, timer.time(empty, cold=False).median, timer.time(empty, cold=True).median)
