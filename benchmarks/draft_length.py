"""Adaptive against fixed draft lengths, and the cost of MTP drafts. Warm engines, in turns.

``python benchmarks/draft_length.py --out benchmarks/results/NAME.json [--turns N] [PART...]``. Parts: lengths (each
example prompt by itself and four times at once, greedy and sampled: plain decoding, K = 1 to 8, adaptive), mtp (seconds
of a draft over those of a plain step, with 1 slot and with 4, and of the products with weights in both). Every engine
has its own model, decodes a prompt untimed before the turns, and forgets it before each of them. Ratios are medians
over the turns, each within one turn. ``--clock cpu`` counts the process's CPU time, for a machine with other work.
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
from types import SimpleNamespace
from typing import Any

import numpy as np
from record import write

from specdec_hal import hookimpl, load
from specdec_hal.plugin.registry import Registry
from specdec_hal.runner import ModelRunner, Request, SamplingParams

ROOT = Path(__file__).parents[1]
PROMPTS = ("edit_function", "completion", "prose", "unique")
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "top_p": 0.9, "seed": 7},
}
LONGEST = 8
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
MTP_DRAFTS = 4


class Bench:
    """One run: settings and results."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.clock = args, CLOCKS[args.clock]
        self.rows: list[dict[str, Any]] = []

    def note(self, **row: Any) -> None:
        """Keep and print a result."""
        self.rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)

    def runner(self, slots: int, k: int, *keys: str, registry: Registry | None = None) -> ModelRunner:
        """A runner with a model of its own; `k` 0: plain decoding."""
        drafts = [f"speculative.num_speculative_tokens={k}", *keys] if k else []
        runtime = load(ROOT / self.args.config, [f"runner.max_num_seqs={slots}", *drafts], registry=registry)
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

    # ---- the draft length

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

    # ---- drafts of the MTP module

    def mtp(self) -> None:
        """Seconds of a draft and of a plain step, of decoding alone."""
        for slots in (1, 4):
            sides = {}
            for name, k in (("plain", 0), ("mtp", MTP_DRAFTS)):
                registry, records = Registry(), list[Any]()
                observer = SimpleNamespace(specdec_step_finished=hookimpl(_keeping(records)))
                registry.register(observer, "benchmark")
                sides[name] = self.runner(slots, k, "speculative.method=mtp", registry=registry), records
            steps: dict[str, list[float]] = {name: [] for name in sides}
            for turn in range(-1, self.args.turns):
                for name, (runner, records) in sides.items():
                    records.clear()
                    self.decode(runner, list(PROMPTS)[:slots], temperature=0.0)
                    full = [one for one in records if one.decode_slots == slots and not one.prefill_slots]
                    drafted = [one for one in full if one.drafted[MTP_DRAFTS - 1] == slots]
                    if turn >= 0 and name == "plain":
                        steps[name].append(median(float(one.seconds.total()) for one in full))
                    elif turn >= 0:
                        steps[name].append(median(one.seconds["propose"] for one in drafted) / MTP_DRAFTS)
            share = median(a / b for a, b in zip(steps["mtp"], steps["plain"], strict=True))
            proposer: Any = sides["mtp"][0]._proposer
            products = self._products(sides["mtp"][0].model, proposer._module, slots)
            self.note(
                part="mtp", slots=slots, drafts=MTP_DRAFTS, draft_s=median(steps["mtp"]),
                plain_step_s=median(steps["plain"]), share=share, **products,
            )  # fmt: skip

    def _products(self, model: Any, module: Any, rows: int) -> dict[str, float]:
        """Seconds of the products with weights alone: of a plain step, of a draft, and of the head, which both have.

        Each weight once a round, as a step has it.
        """
        layer, inner = model.config.hidden_size, model.config.intermediate_size

        def of_layer(one: Any) -> list[tuple[Any, int]]:
            return [(one.qkv, layer), (one.out, layer), (one.gate_up, layer), (one.down, inner)]

        head, enter = [(model._head, layer)], [(module._embedding_in, layer), (module._hidden_in, layer)]
        sides = {
            "plain": [part for one in model._layers for part in of_layer(one)] + head,
            "draft": [*enter, *of_layer(module._model._layers[0]), *head],
            "head": head,
        }
        inputs = {width: model._upload(np.ones((rows, width), np.float32)) for width in (layer, inner)}
        taken: dict[str, list[float]] = {name: [] for name in sides}
        with model._inference():
            for _ in range(200):
                for name, products in sides.items():
                    start = self.clock()
                    for weight, width in products:
                        model._project(inputs[width], weight, rows)
                    taken[name].append(self.clock() - start)
        return {f"{name}_products_s": median(some) for name, some in taken.items()}


def _keeping(records: list[Any]) -> Callable[..., None]:
    def keep(record: Any) -> None:
        records.append(record)

    return keep


def main() -> None:
    """Run the named parts, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="lengths, mtp; all if none is named")
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
    for part in args.parts or ("lengths", "mtp"):
        getattr(bench, part)()
    write(bench.rows, args.out)


if __name__ == "__main__":
    main()
