"""The engine end to end: prefill, admission, decoding and streaming, in turns.

``python benchmarks/engine.py --out benchmarks/results/NAME.json [PART...]``. The parts are:

- throughput: plain, n-gram drafts, and ``generate`` of transformers
- overlap: tokens per second with and without it, and without graphs
- latency: long prompts beside decoding requests, also with bounded steps
- methods: plain, by default, n-grams with fixed and adaptive lengths, and an EAGLE-3 head, greedy and sampled

Needs a GPU, or ``--device cpu``. ``--large``: 1 B random parameters instead of the embedded model.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

from engine_latency import measure
from record import write
from serving import example_texts, large_model, model_keys

from specdec_hal import load
from specdec_hal.engine.runtime import Runtime
from specdec_hal.runner import ModelRunner, Request, SamplingParams
from specdec_hal.tensors.memory import freeze_heap

ROOT = Path(__file__).parents[1]


class Bench:
    """One run: settings, models and results."""

    def __init__(self, device: str, new_tokens: int, turns: int, model: Path | None, out: Path | None) -> None:
        self.cuda, self.new_tokens, self.turns, self.model, self.out = device == "cuda", new_tokens, turns, model, out
        self.temperature, self.requests = 0.0, 0
        self.results: list[dict[str, Any]] = []

    def note(self, **row: Any) -> None:
        """Keep, print and write a result; later ones may be cut by a limit."""
        self.results.append(row)
        print(json.dumps(row), flush=True)
        if self.out is not None:
            write(self.results, self.out)

    def runtime(self, slots: int, k: int, *more: str) -> Runtime:
        """The model under the GPU's configuration, or the CPU's."""
        config = "configs/cuda.yaml" if self.cuda else "configs/cpu.yaml"
        keys = [f"runner.max_num_seqs={slots}"]
        if self.cuda:
            keys += ["model.framework=transformers", "model.dtype=float32", "runner.prefill_chunk=1024"]
            keys.append(f"runner.max_num_batched_tokens={slots * (k + 1) + 2048}")
        keys += model_keys(self.model)
        if k:
            keys.append(f"speculative.num_speculative_tokens={k}")
        runtime = load(ROOT / config, [*keys, *more])
        return runtime if k else runtime.naive()

    def prompts(self, runner: ModelRunner, count: int) -> list[list[int]]:
        """The example prompts over and over, each time with two tokens less at the head."""
        assert runner.tokenizer is not None
        ids = [runner.tokenizer.encode(text) for text in example_texts()]
        return [ids[i % 4][2 * (i // 4) :] for i in range(count)]

    def decode(self, runner: ModelRunner, prompts: list[list[int]]) -> tuple[float, int]:
        """Seconds, and the number of tokens."""
        streamed = 0

        def count(delta: Any) -> None:
            nonlocal streamed
            streamed += len(delta.token_ids)

        wanted = SamplingParams(max_new_tokens=self.new_tokens, temperature=self.temperature, seed=0)
        start = time.perf_counter()
        for i, prompt in enumerate(prompts):
            runner.add_request(Request(str(i), prompt, wanted, count))
        outputs = runner.run()
        seconds = time.perf_counter() - start
        assert streamed == sum(len(output.token_ids) for output in outputs.values())
        return seconds, streamed

    def engine(self, slots: int, k: int, *more: str) -> Callable[[], dict[str, Any]]:
        """An engine; what is returned decodes the prompts of `self.requests`, or of all slots, once; warm."""
        runner = self.runtime(slots, k, *more).runner()
        warm: set[tuple[int, float]] = set()

        def once() -> dict[str, Any]:
            prompts = self.prompts(runner, self.requests or slots)
            if (len(prompts), self.temperature) not in warm:
                warm.add((len(prompts), self.temperature))
                for _ in range(2):  # compile, then capture
                    self.decode(runner, prompts)
                freeze_heap()  # as a server does
            before = runner.summary()
            seconds, total = self.decode(runner, prompts)
            after = runner.summary()
            steps = after["steps"] - before["steps"]
            stages = {
                name: value - before["seconds_by_stage"].get(name, 0.0)
                for name, value in after["seconds_by_stage"].items()
            }
            host = sum(value for name, value in stages.items() if name != "wait")
            return {
                "tokens_per_s": total / seconds,
                "tokens": total,
                "steps": steps,
                "us_per_step": 1e6 * seconds / steps,
                "host_us_per_step": 1e6 * host / steps,
                "us_by_stage": {name: 1e6 * value / steps for name, value in stages.items()},
                "graphs": after["graphs"],
                "failed_steps": after["failed_steps"],
            }

        return once

    def transformers(self, slots: int, dtype: str) -> Callable[[], dict[str, Any]]:
        """`generate` of transformers on the same prompts: one static batch, padded on the left."""
        import torch
        from transformers import AutoModelForCausalLM

        folder = self.model or ROOT / "models/tiny-py-lm"
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        model = model.to("cuda" if self.cuda else "cpu").eval()
        runner = self.runtime(slots, 0).runner()
        prompts, end = self.prompts(runner, slots), min(runner.end_tokens)
        ids = torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(prompt) for prompt in prompts], batch_first=True, padding_value=end, padding_side="left"
        ).to(model.device)
        asked = {"max_new_tokens": self.new_tokens, "do_sample": False, "pad_token_id": end}

        def once() -> dict[str, Any]:
            start = time.perf_counter()
            rows = model.generate(ids, attention_mask=(ids != end).long(), **asked)[:, ids.shape[1] :].tolist()
            total = sum(row.index(end) + 1 if end in row else len(row) for row in rows)
            return {"tokens_per_s": total / (time.perf_counter() - start)}

        once()
        return once

    # ---- parts

    def throughput(self) -> None:
        """Plain decoding, n-gram drafts and transformers."""
        for dtype in ("float32", "bfloat16")[self.model is not None : 1 + self.cuda]:
            for slots in (1, 64) if self.cuda else (1, 4):
                runs = {
                    "plain": self.engine(slots, 0, f"model.dtype={dtype}"),
                    "drafts": self.engine(slots, 8, "speculative.method=ngram", f"model.dtype={dtype}"),
                    "transformers": self.transformers(slots, dtype),
                }
                for name, row in in_turns(runs, self.turns).items():
                    self.note(part="throughput", dtype=dtype, requests=slots, run=name, **row)

    def overlap(self) -> None:
        """The same engine with and without overlap, and without graphs."""
        slots = 64 if self.cuda else 4
        for k in (0, 8):
            runs = {
                "overlap": self.engine(slots, k),
                "no overlap": self.engine(slots, k, "runner.overlap=false"),
            }
            if self.cuda:
                runs["no graph"] = self.engine(slots, k, "runner.graph=false")
            for name, row in in_turns(runs, self.turns).items():
                self.note(part="overlap", requests=slots, drafts=k, run=name, **row)

    def methods(self) -> None:
        """Plain decoding, n-grams by name with fixed and adaptive lengths, an EAGLE-3 head by name, and the default
        with the model's module or with that head."""
        most, ngram = 64 if self.cuda else 4, "speculative.method=ngram"
        head = f"speculative.path={ROOT / 'models/tiny-py-lm-eagle3'}", "speculative.calibrate=false"
        runs = {
            "plain": self.engine(most, 0),
            "default": self.engine(most, 5, "speculative.method=auto"),
            "ngram": self.engine(most, 5, ngram),
            "ngram, fixed": self.engine(most, 5, ngram, "speculative.adaptive=false"),
            "eagle3": self.engine(most, 5, "speculative.method=eagle3", *head),
            "default, eagle3": self.engine(most, 5, "speculative.method=auto", *head),
        }
        for temperature, requests in product((0.0, 0.8), (1, 8, 64) if self.cuda else (1, 4)):
            self.temperature, self.requests = temperature, requests
            for name, row in in_turns(runs, self.turns).items():
                self.note(part="methods", temperature=temperature, requests=requests, run=name, **row)
        self.requests = 0

    def latency(self) -> None:
        """First token of long prompts alone and beside decoding requests, and the delays of these by cause."""
        slots = 64 if self.cuda else 4
        for chunk in (128, 256, 512):
            runs = {"overlap": [], "no overlap": ["runner.overlap=false"], "ratio 1.5": ["runner.mixed_step_ratio=1.5"]}
            for run, more in runs.items():
                sizes = [f"runner.prefill_chunk={chunk}", f"runner.max_num_batched_tokens={slots + chunk}"]
                sizes.append("runner.enable_prefix_caching=false")  # the long prompt comes again and again
                runtime = self.runtime(slots, 0, "runner.max_model_len=2047", *sizes, *more)
                runner = runtime.runner()
                runner.warm_up()
                prompts = self.prompts(runner, slots)
                for row in measure(runner, runtime.registry, prompts, (prompts[0] * 40)[:2000]):
                    self.note(part="latency", prefill_chunk=chunk, run=run, **row)


def in_turns(runs: dict[str, Callable[[], dict[str, Any]]], turns: int) -> dict[str, dict[str, Any]]:
    """All runs in turn, `turns` times; the fastest of each, with the spread."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in runs}
    for _ in range(turns):
        for name, run in runs.items():
            rows[name].append(run())
    best = {name: max(samples, key=lambda row: row["tokens_per_s"]) for name, samples in rows.items()}
    return {name: {**row, "all_tokens_per_s": [r["tokens_per_s"] for r in rows[name]]} for name, row in best.items()}


def main() -> None:
    """Run the named parts, or those of limits.sh."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--large", action="store_true", help="1 B random parameters; needs a GPU")
    options = parser.parse_args()
    with ExitStack() as stack:
        model = stack.enter_context(large_model()) if options.large else None
        bench = Bench(options.device, options.new_tokens, options.turns, model, options.out)
        for part in options.parts or ("overlap", "latency"):
            print(f"== {part}", flush=True)
            getattr(bench, part)()


if __name__ == "__main__":
    main()
