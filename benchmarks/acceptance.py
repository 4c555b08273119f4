"""Tokens per step and acceptance by method, on the example prompts and on those of a file.

    python benchmarks/acceptance.py OUT.json --config configs/cuda.yaml --prompts HumanEval.jsonl \
        --method eagle3=models/tiny-py-lm-eagle3 --method dflash=models/tiny-py-lm-dflash [--seeds 4]

Counts, not times: K = 5, 128 new tokens, no adaptive lengths, greedy and at temperature 0.8 with several seeds. Fails
if a method changed a token.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from record import write

import specdec_hal as sd
from specdec_hal.runner import Request, SamplingParams

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Decode with each method, and record what was counted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--config", required=True)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--method", action="append", required=True, metavar="NAME=PATH")
    parser.add_argument("--seeds", type=int, default=4)
    args = parser.parse_args()
    examples = sorted((ROOT / "examples/prompts").glob("*.txt"))
    sets = {"examples": [file.read_text().rstrip("\n") for file in examples]}
    if args.prompts:
        sets[args.prompts.stem] = [json.loads(line)["prompt"] for line in args.prompts.read_text().splitlines()]
    sampling = [(0.0, 0), *((0.8, seed) for seed in range(1, args.seeds + 1))]
    found, plain, model = list[dict[str, Any]](), dict[Any, Any](), None
    for name, path in [("naive", ""), *(one.split("=") for one in args.method)]:
        keys = ["speculative.num_speculative_tokens=5", "speculative.adaptive=false", f"speculative.method={name}"]
        keys += [f"speculative.path={Path(path).resolve()}"] if path else []
        runner = sd.load(args.config, keys).runner(**({} if model is None else {"model": model}))
        model = runner.model
        for kind, texts in sets.items():
            for temperature, seed in sampling:
                for number, text in enumerate(texts):
                    params = SamplingParams(
                        max_new_tokens=128, temperature=temperature, seed=seed, return_drafts=name != "naive"
                    )
                    runner.add_request(Request(str(number), runner.tokenizer.encode(text), params))
                outputs: dict[str, Any] = runner.run()
                runner.forget()
                tokens = {key: output.token_ids for key, output in outputs.items()}
                same = plain.setdefault((kind, temperature, seed), tokens) == tokens
                counts = np.zeros(5, int)
                rounds = [one for output in outputs.values() for one in output.drafts or ()]
                for one in rounds:
                    counts[: one.accepted] += 1
                made, steps = (
                    sum(len(ids) - 1 for ids in tokens.values()), sum(output.steps for output in outputs.values())
                )  # fmt: skip
                found.append({
                    "prompts": kind, "temperature": temperature, "seed": seed, "method": name, "folder": path,
                    "tokens": made + len(tokens), "identical": same, "tokens_per_step": made / steps,
                    "num_drafts": len(rounds),
                    "acceptance_by_position": (counts / max(len(rounds), 1)).round(4).tolist(),
                })  # fmt: skip
        write(found, args.out)
        for kind in sets:
            for temperature in (0.0, 0.8):
                values = [
                    one["tokens_per_step"] for one in found
                    if (one["method"], one["folder"]) == (name, path)
                    and (one["prompts"], one["temperature"]) == (kind, temperature)
                ]  # fmt: skip
                print(name, path, kind, temperature, round(float(np.mean(values)), 3), flush=True)
    if not all(one["identical"] for one in found):
        raise SystemExit("a method changed tokens")


if __name__ == "__main__":
    main()
