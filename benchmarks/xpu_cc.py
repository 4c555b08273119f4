"""Time to compile this project's XPU kernels with `specdec-hal xpu-cc`, in every mode.

``python benchmarks/xpu_cc.py --out benchmarks/results/NAME.json``; ``--command`` names another installation's
specdec-hal, which is measured in turns with this one: the second figure of each pair.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from record import write

OPS = Path(__file__).parents[1] / "kernels_xpu_sim" / "kernels"
COMMON = OPS.parents[1] / "kernels_common" / "include"
MODES = ("fast", "asan", "strict")


def seconds(command: str, source: Path, mode: str, folder: Path) -> float:
    """One compilation to a library."""
    includes = [word for path in (OPS, COMMON) for word in ("-I", str(path))]
    args = [command, "xpu-cc", "--shared", "--mode", mode, *includes, str(source), "-o", str(folder / "kernel.so")]
    start = time.perf_counter()
    subprocess.run(args, check=True)
    return time.perf_counter() - start


def main() -> None:
    """Every kernel in every mode."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--command", action="append", default=[], metavar="FILE", help="another specdec-hal")
    parser.add_argument(
        "--kernels", nargs="+", default=["verify_draft_tokens", "ngram_match", "sample_target"], metavar="NAME"
    )
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    commands = [str(Path(sys.executable).with_name("specdec-hal")), *args.command]
    figures: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in args.kernels:
            for mode in MODES:
                source = OPS / f"{name}.xpu"
                times = [[seconds(c, source, mode, Path(folder)) for c in commands] for _ in range(args.repeat)]
                figures.setdefault(name, {})[mode] = [round(min(row), 2) for row in zip(*times, strict=True)]
                print(name, mode, figures[name][mode])
    write({"seconds": figures}, args.out)


if __name__ == "__main__":
    main()
