"""Processes that are the ranks of a model for GPUs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
GRACE_S = 10.0
"""For the others to end after one has failed, which they may wait for."""
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
    logs = [out.with_suffix(f".{rank}.log") for rank in range(len(devices))]
    ranks = []
    for rank, (where, log) in enumerate(zip(devices, logs, strict=True)):
        arguments = (folder, rank, size, out.with_suffix(".meet"), where, transport, out, *more)
        command = [sys.executable, "-m", f"tests.parallel.{module}", *map(str, arguments)]
        with log.open("w") as said:
            ranks.append(subprocess.Popen(command, cwd=ROOT, env=environment, stderr=said))
    try:
        end = time.monotonic() + TIMEOUT_S
        while (late := [process for process in ranks if process.poll() is None]) and time.monotonic() < end:
            time.sleep(0.05)
            if any(process.poll() for process in ranks):
                end = min(end, time.monotonic() + GRACE_S)
        for process in late:
            process.send_signal(signal.SIGABRT)  # which has it write where it is
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
    finally:
        for process in ranks:
            process.kill()
    failed = [rank for rank, process in enumerate(ranks) if process.returncode]
    said = "\n".join(f"rank {rank}:\n{log.read_text()}" for rank, log in enumerate(logs))
    assert not failed, f"ranks {failed} failed, {len(late)} of them without an end:\n{said}"
    return out


def whole_and_split(
    module: str, folder: Path, where: Path, size: int, device: str, transport: str, *more: str
) -> tuple[Path, Path]:
    """What the undivided model and `size` ranks write into the folder `where`, side by side on GPUs."""
    with ThreadPoolExecutor(2) as pool:
        whole = pool.submit(run_ranks, module, folder, 0, where / "whole", "cuda:0", "gloo", *more)
        split = pool.submit(run_ranks, module, folder, size, where / "split", device, transport, *more)
        return whole.result(), split.result()
