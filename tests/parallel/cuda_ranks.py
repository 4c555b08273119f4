"""Processes that are the ranks of a model for GPUs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
TIMEOUT_S = int(os.environ.get("SPECDEC_HAL_RANKS_TIMEOUT_S", "500"))


def run_ranks(
    module: str, folder: Path, size: int, out: Path, device: str = "cpu", transport: str = "gloo", *more: str
) -> Path:
    """Run a module of this package on every rank, which must all succeed; 0: on the undivided model.

    `device`: of all ranks, or "each", a GPU for each. `more`: arguments. Returns `out`, written by the first rank.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONFAULTHANDLER": "1"}
    if device == "cpu":
        environment["TRITON_INTERPRET"] = "1"
    devices = [f"cuda:{rank}" if device == "each" else device for rank in range(max(size, 1))]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", f"tests.parallel.{module}"]
            + [str(one) for one in (folder, rank, size, out.with_suffix(".meet"), where, transport, out, *more)],
            cwd=ROOT,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, where in enumerate(devices)
    ]
    try:
        errors = [process.communicate(timeout=TIMEOUT_S)[1] for process in ranks]
    except subprocess.TimeoutExpired:
        for process in ranks:
            process.send_signal(signal.SIGABRT)  # which has it write where it is
        errors = [process.communicate(timeout=10)[1] for process in ranks]
        raise AssertionError("\n".join(["ranks do not end", *errors])) from None
    finally:
        for process in ranks:
            process.kill()
    failed = [rank for rank, process in enumerate(ranks) if process.returncode]
    assert not failed, f"ranks {failed} failed:\n" + "\n".join(errors)
    return out


def whole_and_split(
    module: str, folder: Path, where: Path, size: int, device: str, transport: str, *more: str
) -> tuple[Path, Path]:
    """What the undivided model and `size` ranks write into the folder `where`, side by side on GPUs."""
    with ThreadPoolExecutor(2) as pool:
        whole = pool.submit(run_ranks, module, folder, 0, where / "whole", "cuda:0", "gloo", *more)
        split = pool.submit(run_ranks, module, folder, size, where / "split", device, transport, *more)
        return whole.result(), split.result()
