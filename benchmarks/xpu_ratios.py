"""What the emulator costs, by processor time: kernels in the shapes of public ones (xpu_ratios/) against the CPU paths
that wrappers have beside them, and the strict build against the fast one.

``python benchmarks/xpu_ratios.py --out benchmarks/results/cpu-xpu-ratios.json``: both programs in turns; of each kernel
the shortest of all runs counts, which others disturb least. `free_blocks` and `advance_slots` move single numbers, one
transfer each: what a loop over arrays does in a nanosecond each.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from record import write

from specdec_hal.xpu.cc import Build, build

FOLDER = Path(__file__).parent / "xpu_ratios"
MODES = ("fast", "strict")


def microseconds(program: Path) -> dict[str, tuple[float, float]]:
    """By kernel: its time and its CPU path's."""
    done = subprocess.run([str(program)], capture_output=True, text=True, check=True)
    rows = (line.split() for line in done.stdout.splitlines())
    return {name: (float(kernel), float(cpu)) for name, kernel, cpu in rows}


def main() -> None:
    """Compile, run in turns, divide."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    best: dict[tuple[str, str], float] = {}
    with tempfile.TemporaryDirectory() as folder:
        programs = {mode: Path(folder, mode) for mode in MODES}
        for mode, program in programs.items():
            sources = (FOLDER / "kernels.xpu", FOLDER / "cpu_paths.cpp")
            status, _ = build(Build(sources=sources, output=program, mode=mode))
            assert status == 0
        for _ in range(args.rounds):
            for mode, program in programs.items():
                for name, (kernel, cpu) in microseconds(program).items():
                    for which, time in ((mode, kernel), ("cpu", cpu)):
                        best[name, which] = min(time, best.get((name, which), time))
    figures: dict[str, Any] = {}
    for name in dict.fromkeys(name for name, _ in best):
        times = {which: best[name, which] for which in ("cpu", *MODES)}
        figures[name] = {f"{which}_us": round(time, 2) for which, time in times.items()} | {
            "fast_over_cpu": round(times["fast"] / times["cpu"], 1),
            "strict_over_fast": round(times["strict"] / times["fast"], 1),
        }
        print(name, figures[name])
    write(figures, args.out)


if __name__ == "__main__":
    main()
