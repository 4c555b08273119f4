"""Number of threads on a CPU, for ops and models, and of cores for processes.

This module is imported before Paddle, whose import sets OMP_NUM_THREADS to 1 unless it is set.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

GIVEN = (os.environ.get("MKL_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or "").split(",")[0]
CGROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def available() -> int:
    """One per core of :func:`cores`, limited by MKL_NUM_THREADS or OMP_NUM_THREADS."""
    return min(cores(), max(1, int(GIVEN))) if GIVEN.isdigit() else cores()


def cores() -> int:
    """Cores that this process may use: those of its affinity, or fewer if its cgroup has a quota, rounded up."""
    return max(1, math.ceil(min([len(os.sched_getaffinity(0)), *_quotas(CGROUPS, MEMBERSHIP)])))


@cache
def _quotas(root: Path, membership: Path) -> tuple[float, ...]:
    """Processors' worth of time that this process's cgroups and their parents allow, of versions 1 and 2."""
    return tuple(_read_quotas(root, membership))


def _read_quotas(root: Path, membership: Path) -> Iterator[float]:
    try:
        lines = membership.read_text().splitlines()
    except OSError:  # no Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        files: tuple[str, ...]
        if not controllers:  # version 2
            mount, files = root, ("cpu.max",)
        elif "cpu" in controllers.split(","):
            mount, files = root / "cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        else:
            continue
        folder = mount / path.lstrip("/")
        for group in (folder, *(parent for parent in folder.parents if parent.is_relative_to(mount))):
            try:
                quota, period = " ".join((group / file).read_text() for file in files).split()
            except (OSError, ValueError):  # the root has none; paths of other namespaces lead nowhere
                continue
            if quota not in ("max", "-1"):
                yield int(quota) / int(period)
