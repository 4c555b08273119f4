"""Tokens per step and acceptance by method, on the example prompts and on the first twenty of HumanEval.

    python benchmarks/acceptance.py OUT.json --config configs/cuda.yaml --prompts HumanEval.jsonl \
        --method ngram,mtp,eagle3,dflash --set speculative.eagle3.path=... [--seeds 4]

Counts, not times: K = 5, 128 new tokens, no adaptive lengths, greedy and at temperature 0.8 with several seeds, which
run side by side. A prompt file is one of `specdec-hal compare --prompts`; without one, the example prompts. Fails if a
method changed a token.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from record import write

ROOT = Path(__file__).parents[1]


def compared(config: str, arguments: list[str]) -> dict[str, Any]:
    """What `specdec-hal compare` prints as JSON."""
    command = [sys.executable, "-m", "specdec_hal.cli", "compare", "--config", config, "--json", "--repeat", "1"]
    keys = ["max_new_tokens=128", "num_speculative_tokens=5", "adaptive=false"]
    sections = ("sampling", "speculative", "speculative")
    settings = [part for section, key in zip(sections, keys, strict=True) for part in ("--set", f"{section}.{key}")]
    run = subprocess.run([*command, *settings, *arguments], capture_output=True, text=True, check=False, cwd=ROOT)
    if run.returncode:
        raise SystemExit(f"{' '.join(run.args)}\n{run.stdout[-400:]}{run.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def main() -> None:
    """Run the comparisons and record them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--config", required=True)
    parser.add_argument("--prompts", action="append", default=[])
    parser.add_argument("--method", required=True)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    args = parser.parse_args()
    given = ["--method", args.method, *(part for one in args.set for part in ("--set", one))]
    examples = [
        part for file in sorted((ROOT / "examples/prompts").glob("*.txt")) for part in ("--prompt-file", str(file))
    ]
    sets = {"examples": examples} | {Path(file).stem: ["--prompts", str(Path(file).resolve())] for file in args.prompts}
    sampled = [
        ["--set", "sampling.temperature=0.8", "--set", f"sampling.seed={seed}"] for seed in range(1, args.seeds + 1)
    ]
    runs = [(name, keys) for name in sets for keys in ([], *sampled)]
    with ThreadPoolExecutor(len(runs)) as pool:
        results = list(pool.map(lambda run: compared(args.config, [*sets[run[0]], *given, *run[1]]), runs))
    if not all(result["identical"] for result in results):
        raise SystemExit("a method changed tokens")
    keep = ("method", "prompts", "tokens", "tokens_per_step", "num_drafts", "acceptance_by_position")
    write(
        [
            {
                "prompts": name,
                "settings": keys[1::2],
                "methods": [{key: row[key] for key in keep} for row in result["pooled"]],
            }
            for (name, keys), result in zip(runs, results, strict=True)
        ],
        args.out,
    )


if __name__ == "__main__":
    main()
