"""Number of threads on a CPU, for ops and models.

This module is imported before Paddle, whose import sets OMP_NUM_THREADS to 1 unless it is set.
"""

from __future__ import annotations

import os

GIVEN = (os.environ.get("MKL_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or "").split(",")[0]


def available() -> int:
    """One per core available to this process, limited by MKL_NUM_THREADS or OMP_NUM_THREADS."""
    cores = len(os.sched_getaffinity(0))
    return min(cores, max(1, int(GIVEN))) if GIVEN.isdigit() else cores
