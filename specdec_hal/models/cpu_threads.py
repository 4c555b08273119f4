"""Number of threads of a model on a CPU.

This module is imported before Paddle, whose import sets OMP_NUM_THREADS to 1 unless it is set.
"""

from __future__ import annotations

import os

from specdec_hal.models.batch import refused

GIVEN = (os.environ.get("MKL_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or "").split(",")[0]


def available() -> int:
    """One per core available to this process, limited by MKL_NUM_THREADS or OMP_NUM_THREADS."""
    cores = len(os.sched_getaffinity(0))
    return min(cores, max(1, int(GIVEN))) if GIVEN.isdigit() else cores


def check(threads: int | None, framework: str) -> None:
    """ArgumentError for an invalid number of threads."""
    if threads is not None and threads < 1:
        raise refused(framework, "load_model", "threads", "an integer >= 1", threads, "leave it out, or ask for more")
