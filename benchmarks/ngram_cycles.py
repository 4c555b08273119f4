"""Tokens per step of n-gram drafts that end with the text and of cyclic ones, greedy, embedded model.

Counts, not times: they do not depend on the machine. Over the example prompts, the first twenty of HumanEval
(`engine_inputs.py`) and a text that repeats itself.

``python benchmarks/ngram_cycles.py --out benchmarks/results/ngram-cycles.json``
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from engine_inputs import ROOT, prompts
from record import write

import specdec_hal as sd
from specdec_hal.runner import Request, SamplingParams

CONFIG = ROOT / "configs/xpu_sim.yaml"
CYCLE = "def f(b):\n    return b + b + b + b"
HOW = {
    "LEFTMOST": ("match_policy=leftmost",),
    "LATEST, to the end of the text": ("match_policy=latest", "continue_cycles=false"),
    "LATEST, in cycles": ("match_policy=latest",),
}


def count(texts: list[str], how: tuple[str, ...], max_new_tokens: int) -> tuple[dict[str, Any], list[Any]]:
    """The figures of one way to draft, and the tokens."""
    runtime = sd.load(CONFIG, tuple(f"speculative.ngram.{each}" for each in how))
    tokenizer, runner = runtime.load_tokenizer(), runtime.runner()
    params = SamplingParams(temperature=0, max_new_tokens=max_new_tokens)
    for number, text in enumerate(texts):
        runner.add_request(Request(str(number), tokenizer.encode(text), params))
    finished = runner.run()
    outputs = [finished[str(number)] for number in range(len(texts))]
    steps, tokens = sum(output.steps for output in outputs), sum(len(output.token_ids) for output in outputs)
    drafted, accepted = sum(output.drafted for output in outputs), sum(output.accepted for output in outputs)
    figures = {
        "tokens": tokens,
        "steps": steps,
        "tokens_per_step": round(tokens / steps, 3),
        "drafted": drafted,
        "accepted": accepted,
        "acceptance": round(accepted / max(drafted, 1), 3),
    }
    return figures, [output.token_ids for output in outputs]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    for name, texts in {**prompts(), "a cycle": [CYCLE]}.items():
        results = {how: count(texts, keys, args.max_new_tokens) for how, keys in HOW.items()}
        plain, *others = (tokens for _, tokens in results.values())
        figures[name] = {"prompts": len(texts), "identical": all(tokens == plain for tokens in others)}
        figures[name] |= {how: each for how, (each, _) in results.items()}
    write(figures, args.out)


if __name__ == "__main__":
    main()
