"""How many threads a model is computed with on a CPU.

This module is imported before Paddle where this package is: importing Paddle sets OMP_NUM_THREADS to 1 if nobody has.
"""

from __future__ import annotations

import os

from specdec_hal.errors import ArgumentError

_GIVEN = (os.environ.get("MKL_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or "").split(",")[0]


def available() -> int:
    """One for each core that this process may use; no more than MKL_NUM_THREADS or OMP_NUM_THREADS, if set."""
    cores = len(os.sched_getaffinity(0))
    return min(cores, max(1, int(_GIVEN))) if _GIVEN.isdigit() else cores


def check(threads: int | None, framework: str) -> None:
    """ArgumentError for a number of threads that a model cannot be computed with."""
    if threads is not None and threads < 1:
        raise ArgumentError(
            op="load_model",
            backend=framework,
            argument="threads",
            expected="an integer >= 1",
            got=str(threads),
            hint="leave it out, or ask for more",
        )
