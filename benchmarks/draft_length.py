"""Adaptive against fixed draft lengths. Warm engines, in turns.

``python benchmarks/draft_length.py --out benchmarks/results/NAME.json [--turns N]``: each example prompt by itself and
four times at once, greedy and sampled; plain decoding, K = 1 to 8, adaptive. Every engine has its own model, decodes a
prompt untimed before the turns, and forgets it before each of them. Ratios are medians over the turns, each within one
turn. ``--clock cpu`` counts the process's CPU time, for a machine with other work.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean, mean, median
from typing import Any

from record import write

from specdec_hal import load
from specdec_hal.runner import ModelRunner, Request, SamplingParams

ROOT = Path(__file__).parents[1]
PROMPTS = ("edit_function", "completion", "prose", "unique")
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "top_p": 0.9, "seed": 7},
}
LONGEST = 8
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


class Bench:
    """One run: settings and results."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.clock = args, CLOCKS[args.clock]
        self.rows: list[dict[str, Any]] = []

    def note(self, **row: Any) -> None:
        """Keep and print a result."""
        self.rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)

    def runner(self, slots: int, k: int, *keys: str) -> ModelRunner:
        """A runner with a model of its own; `k` 0: plain decoding."""
        drafts = [f"speculative.num_speculative_tokens={k}", *keys] if k else []
        runtime = load(ROOT / self.args.config, [f"runner.max_num_seqs={slots}", *drafts])
        return (runtime if k else runtime.naive()).runner()

    def decode(self, runner: ModelRunner, prompts: list[str], **sampling: Any) -> tuple[float, list[tuple[int, ...]]]:
        """Seconds, and the tokens of every prompt; request i has the i-th seed."""
        assert runner.tokenizer is not None
        for number, name in enumerate(prompts):
            ids = runner.tokenizer.encode((ROOT / f"examples/prompts/{name}.txt").read_text().removesuffix("\n"))
            seed = sampling.get("seed", 0) + number
            params = SamplingParams(max_new_tokens=self.args.tokens, **{**sampling, "seed": seed})
            runner.add_request(Request(str(number), ids, params))
        gc.collect()
        start = self.clock()
        outputs = runner.run()
        seconds = self.clock() - start
        return seconds, [outputs[str(number)].token_ids for number in range(len(prompts))]

    def lengths(self) -> None:
        """Every prompt, batch and kind of sampling."""
        method = f"speculative.method={self.args.method}"
        for batch in self.args.batch:
            sides: dict[str, ModelRunner] = {"0": self.runner(batch, 0)}
            sides |= {str(k): self.runner(batch, k, method) for k in range(1, LONGEST + 1)}
            sides["adaptive"] = self.runner(batch, LONGEST, method, "speculative.adaptive=true")
            for kind in SAMPLING:
                for prompt in self.args.prompt:
                    self._case(sides, kind, prompt, batch)
            self._summary(batch)

    def _case(self, sides: dict[str, ModelRunner], kind: str, prompt: str, batch: int) -> None:
        expected: list[tuple[int, ...]] = []
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        per_step: dict[str, Any] = {}
        for turn in range(-1, self.args.turns):  # the first is not timed
            for name, runner in sides.items():
                runner.forget()
                taken, tokens = self.decode(runner, [prompt] * batch, **SAMPLING[kind])
                expected = expected or tokens
                if tokens != expected:
                    raise SystemExit(f"{prompt}, {kind}, batch {batch}: {name} gave other tokens than plain decoding")
                if turn >= 0:
                    seconds[name].append(taken)
                    per_step[name] = runner.metrics.summary()["tokens_per_step"]
        typical = {name: median(some) for name, some in seconds.items()}
        best = min((name for name in sides if name != "adaptive"), key=typical.__getitem__)

        def over(side: str) -> float:
            """How much faster than that side."""
            return median(a / b for a, b in zip(seconds[side], seconds["adaptive"], strict=True))

        self.note(
            part="lengths", method=self.args.method, prompt=prompt, sampling=kind, batch=batch, best=best,
            over_plain=over("0"), over_best=over(best), seconds=typical, tokens_per_step=per_step,
        )  # fmt: skip

    def _summary(self, batch: int) -> None:
        rows = [row for row in self.rows if row["part"] == "lengths" and row["batch"] == batch]
        greedy = [row["over_plain"] for row in rows if row["sampling"] == "greedy"]
        self.note(
            part="summary", method=self.args.method, batch=batch, least_over_plain=min(r["over_plain"] for r in rows),
            least_over_best=min(r["over_best"] for r in rows), mean_over_plain_greedy=mean(greedy),
            geometric_mean_over_plain_greedy=geometric_mean(greedy),
        )  # fmt: skip


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="configs/reference.yaml")
    parser.add_argument("--method", default="ngram", help="of the lengths (default: ngram)")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=256, help="new tokens of a request (default: 256)")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--prompt", nargs="+", choices=PROMPTS, default=list(PROMPTS))
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    bench = Bench(args)
    bench.lengths()
    write(bench.rows, args.out)


if __name__ == "__main__":
    main()
