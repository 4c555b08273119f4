"""End-to-end figures: plain against speculative decoding on the demo prompts, start-up times, memory.

Everything is measured through the installed command line, in separate processes. Run:
``python benchmarks/decode.py --out benchmarks/results/NAME.json``
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import pty
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from record import write

ROOT = Path(__file__).parents[1]
CONFIG = "configs/reference.yaml"
DEMO = "examples/prompts/edit_function.txt"
COMMAND = [sys.executable, "-m", "specdec_hal.cli"]


def import_seconds(runs: int) -> dict[str, Any]:
    """`import specdec_hal` in a fresh interpreter, less the interpreter itself."""
    code = (
        "import time; start = time.perf_counter(); import specdec_hal; elapsed = time.perf_counter() - start; "
        "import sys; print(elapsed, [m for m in ('paddle', 'torch', 'tvm_ffi', 'pydantic') if m in sys.modules])"
    )
    lines = [
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
        for _ in range(runs)
    ]
    times = sorted(float(line.stdout.split(maxsplit=1)[0]) for line in lines)
    return {
        "median": median(times),
        "min": times[0],
        "runs": runs,
        "imported": lines[0].stdout.split(maxsplit=1)[1].strip(),
    }


def first_text() -> dict[str, Any]:
    """`generate` on a terminal: seconds from its start to the first generated text, and its peak memory."""
    parent, child = pty.openpty()
    command = [*COMMAND, "generate", "--config", CONFIG, "--prompt-file", DEMO, "--max-new-tokens", "128"]
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, stdout=child, stderr=subprocess.DEVNULL)
    os.close(child)
    first = None
    for output in iter(lambda: _read(parent), b""):
        if first is None and output.strip():
            first = time.perf_counter() - start
    if process.wait() != 0:
        raise SystemExit(f"{' '.join(command)} failed")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return {"seconds_to_first_text": first, "peak_rss_gb": peak / 2**20}


def _read(terminal: int) -> bytes:
    """A terminal's next output; empty after its last writer, which Linux reports as an I/O error."""
    try:
        return os.read(terminal, 4096)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""


def compare(prompts: list[str], sampling: list[str], repeat: int) -> dict[str, Any]:
    """The command `compare`, token equality included."""
    files = [part for prompt in prompts for part in ("--prompt-file", prompt)]
    options = ["--config", CONFIG, *files, "--max-new-tokens", "256", "--repeat", str(repeat), "--json", *sampling]
    done = subprocess.run([*COMMAND, "compare", *options], cwd=ROOT, capture_output=True, text=True)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    prompts = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "examples/prompts").glob("*.txt"))
    sampled = ["--set", "sampling.temperature=0.8", "--set", "sampling.top_p=0.9", "--set", "sampling.seed=7"]
    figures: dict[str, Any] = {"start": first_text(), "import": import_seconds(10)}
    for name, sampling in (("greedy", []), ("sampled", sampled)):
        for prompt in prompts:
            figures[f"{Path(prompt).stem}, {name}"] = compare([prompt], sampling, args.repeat)
        figures[f"all together, {name}"] = compare(prompts, sampling, args.repeat)
    write(figures, args.out)


if __name__ == "__main__":
    main()
