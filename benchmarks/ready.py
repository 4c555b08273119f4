"""Time from the start of a process until it is ready and to its first token, with cold and warm caches.

``python benchmarks/ready.py --out FILE``: `LLM(warm_up=True)` of the embedded model under configs/cuda.yaml, each
time in a new process, whose caches are in a folder of their own: Triton's, CUDA's, and Python's of compiled modules,
which `pip install` fills. `late`: compilations and captures that the first requests still waited for.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from record import write

ROOT = Path(__file__).parents[1]


def child(start: float) -> None:
    """In the process that is measured; `start`: when it was started."""
    import specdec_hal as sd

    imported = time.time() - start
    llm = sd.LLM(config=str(ROOT / "configs/cuda.yaml"), framework="transformers", warm_up=True)
    ready = time.time() - start
    params = sd.SamplingParams(max_new_tokens=16)
    first = time.perf_counter()
    llm.generate(["def add(a, b):\n    return"], params)
    first = time.perf_counter() - first
    again = time.perf_counter()
    llm.generate(["def sub(a, b):\n    return"], params)
    again = time.perf_counter() - again
    long = time.perf_counter()
    llm.generate(["x = 1\n" * 300] + ["y = 2\n"] * 7, params)
    summary = llm.runner.summary()
    figures = {"imported_s": imported, "ready_s": ready, "first_request_s": first, "second_request_s": again}
    figures |= {"eight_with_a_long_prompt_s": time.perf_counter() - long, "late": summary["late"]}
    print(json.dumps(figures))


def measure(caches: str) -> dict[str, Any]:
    """One process."""
    names = {"TRITON_CACHE_DIR": "triton", "CUDA_CACHE_PATH": "cuda", "PYTHONPYCACHEPREFIX": "python"}
    folders = {name: f"{caches}/{folder}" for name, folder in names.items()}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, __file__, "--child", repr(time.time())]
    done = subprocess.run(command, env={**environment, **folders}, text=True, capture_output=True)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        return child(given.child)
    rows = []
    with tempfile.TemporaryDirectory() as caches:
        for state in ("cold", "warm", "warm"):
            rows.append({"caches": state, **measure(caches)})
            print(json.dumps(rows[-1]), flush=True)
    write(rows, given.out)


if __name__ == "__main__":
    main()
