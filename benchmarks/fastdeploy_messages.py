"""Cost of a step's message to FastDeploy's token processor, with one column of scores and with all 21.

``python benchmarks/fastdeploy_messages.py --out benchmarks/results/cpu-fastdeploy-messages.json``. Microseconds a
message, writer and reader in one process over a real queue: `send` fills the message and hands it to the system,
`receive` takes it and makes Python lists of what the API layer needs. `whole` is FastDeploy's way before PR #7884: all
512 slots and 21 columns travel and are converted, whatever is in them.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from record import write

from specdec_hal.bench.timing import Figures
from specdec_hal.compat.fastdeploy import messages
from specdec_hal.compat.fastdeploy.sysv import MessageQueue, queue_key

MOST = int(Path("/proc/sys/kernel/msgmax").read_text())
TOKENS = 3  # of each slot and step


def make_step(slots: int, columns: int) -> dict[str, Any]:
    """What a message is written of."""
    rng, rows = np.random.default_rng(slots), slots * TOKENS
    return {
        "counts": np.full(slots, TOKENS, np.int32),
        "tokens": rng.integers(0, 150_000, (slots, messages.WIDTH)),
        "ids": rng.integers(0, 150_000, (rows, columns)),
        "scores": rng.normal(size=(rows, columns)).astype(np.float32),
        "ranks": rng.integers(1, 99, rows),
        "starts": np.arange(0, rows + 1, TOKENS),
    }


def sliced(memory: Any, size: int) -> list[Any]:
    """Lists of what a message holds."""
    read = messages.read_scored(memory, size)
    return [read.tokens.tolist(), read.scores.tolist(), read.ranks.tolist()]


def whole(memory: Any, size: int) -> list[Any]:
    """Lists of all columns, as before PR #7884."""
    slots, rows = int(memory["slots"][0]), memory["rows"][0]
    return [rows[name][:slots].tolist() for name in ("tokens", "scores", "ranks")]


def measure(slots: int, columns: int, calls: int, everything: bool) -> dict[str, Any]:
    """`everything`: the message is as long as memory for all slots, and converted before it is cut."""
    queue = MessageQueue(queue_key("/dev/shm", 0x50000 + os.getpid() % 0x10000))
    message, memory, step = messages.ScoredMessage(), np.zeros(1, messages.SCORED), make_step(slots, columns)
    sent, received, size = [], [], 0
    try:
        for _ in range(calls):
            begin = time.perf_counter_ns()
            data = message.write(1, 3, **step)
            queue.send(message.whole if everything else data)
            middle = time.perf_counter_ns()
            size = queue.receive(memory, wait=True)
            (whole if everything else sliced)(memory, size)
            sent.append((middle - begin) / 1e3)
            received.append((time.perf_counter_ns() - middle) / 1e3)
    finally:
        queue.remove()
    return {
        "slots": slots,
        "columns": columns,
        "bytes": size,
        "send_us": Figures.of(sent).rounded(),
        "receive_us": Figures.of(received).rounded(),
    }


def main() -> None:
    """Every form at several numbers of slots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--calls", type=int, default=300)
    args = parser.parse_args()
    if messages.SCORED.itemsize > MOST:
        raise SystemExit(f"kernel.msgmax is {MOST}; sysctl -w kernel.msgmax=1048576 kernel.msgmnb=8388608")
    rows = []
    for slots in (1, 8, 64, 256, 512):
        for name, columns, everything in (("N = 1", 1, False), ("N = 21", 21, False), ("whole", 21, True)):
            rows.append({"form": name, **measure(slots, columns, args.calls, everything)})
    write(rows, args.out)


if __name__ == "__main__":
    main()
