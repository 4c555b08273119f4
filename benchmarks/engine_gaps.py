"""An engine of 64 slots on a GPU: the host's time of a step, and gaps between tokens while long prompts arrive.

``python benchmarks/engine_gaps.py --out FILE [--models embedded 1.2B] [--parts steady gaps]``. `steady`: 64 requests
decode; `gpu_busy` is the share of the time in which a kernel or copy runs, in steps that a profiler watches. `gaps`: 60
requests decode while one or four prompts of 2,000 tokens arrive, with `runner.mixed_step_ratio` and without.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from engine_latency import Observed, figures, sample
from gpu_model import MODELS, ROOT, adapter, of_transformers
from record import write

import specdec_hal as sd
from specdec_hal.config import parse
from specdec_hal.models import load_model, load_tokenizer
from specdec_hal.plugin.registry import or_default
from specdec_hal.runner import ModelRunner, Request, SamplingParams, StreamDelta, build_runner
from specdec_hal.runner.sequence import Sequence
from specdec_hal.tensors.memory import freeze_heap

TINY = ROOT / "models/tiny-py-lm"
SLOTS, LENGTH, CHUNK = 64, 2304, 256
OTHERS, SHORT, LONG = 60, 8, 2000
ALL_AT_ONCE = 8192
SAMPLES = 9
STARTED = time.perf_counter()


def note(rows: list[dict[str, Any]], **row: Any) -> None:
    """Keep a result and print it."""
    rows.append(row)
    print(f"{time.perf_counter() - STARTED:6.1f}", json.dumps(row), flush=True)


class Bench:
    """One model on a backend."""

    def __init__(self, name: str, device: str) -> None:
        self.name, self.device, self.backend = name, device, sd.get_backend("cuda" if device == "cuda" else "reference")
        self.tokenizer = load_tokenizer(TINY)
        if name == "embedded":
            dtype = "bfloat16" if device == "cuda" else "float32"
            self.model: Any = load_model(TINY, "transformers", device=device, dtype=dtype)
        else:
            torch.manual_seed(0)
            self.model = adapter(of_transformers(MODELS[name]()))
        self.rng = np.random.default_rng(0)

    def runner(self, k: int, batched: int, **settings: Any) -> ModelRunner:
        """A runner, warm for greedy requests in all slots."""
        drafts = {"method": "ngram", "num_speculative_tokens": k} if k else {"method": "naive"}
        sizes = {"max_num_seqs": SLOTS, "max_model_len": min(LENGTH, self.model.config.max_position_embeddings)}
        sizes |= {"max_num_batched_tokens": batched, "enable_prefix_caching": False, **settings}
        runner = build_runner(parse({"runner": sizes, "speculative": drafts}), self.backend, self.model, self.tokenizer)
        runner.end_tokens = frozenset()  # and the device's, so that all requests go on
        runner._ordinary[:-1] = True
        if runner.state.symbols["E"]:
            runner.state.write("end_tokens", slice(None), [-1] * runner.state.symbols["E"])
        compiler, greedy = runner.compiler, Sequence(Request("", [0], SamplingParams()), 1, None)
        wanted = compiler.features([greedy], False)

        def buckets(features: Any) -> list[Any]:
            if features != wanted:
                return []
            contexts, sizes = (512, 1024, 2048), compiler.padded(SLOTS)
            if batched == ALL_AT_ONCE:
                contexts, sizes = (512, 1024), sizes[-1:]
            mixed = [compiler.bucket(SLOTS, n, c, True, wanted) for c in contexts for n in sizes]
            return list(dict.fromkeys([*mixed, *(compiler.bucket(SLOTS, 0, c, False, wanted) for c in contexts)]))

        compiler._buckets = buckets  # type: ignore[method-assign]
        runner.warm_up()
        return runner

    def prompts(self, count: int, length: int) -> list[list[int]]:
        """The ends of the example prompts, each a little shorter."""
        texts = [path.read_text() for path in sorted((ROOT / "examples/prompts").glob("*.txt"))]
        ids = [self.tokenizer.encode(text) for text in texts]
        return [(ids[i % len(ids)][: -i - 1])[-length:] for i in range(count)]

    def steady(self, rows: list[dict[str, Any]]) -> None:
        """64 requests decode."""
        seen = {"tokens": 0}

        def tokens(delta: StreamDelta) -> None:
            seen["tokens"] += len(delta.token_ids)

        def text(delta: StreamDelta) -> None:
            _ = delta.text

        for k, adaptive in ((0, False), (8, False), (8, True)):
            runner = self.runner(k, ALL_AT_ONCE, prefill_chunk=128)
            if adaptive:
                from specdec_hal.runner.draft_length import DraftLengths

                runner.lengths = DraftLengths(k)
            readers: list[Any] = [(tokens, []), (text, []), (None, []), (None, ["\nclass "])]
            for reader, stop in readers:
                if adaptive and reader is not tokens:
                    continue
                for turn in range(3):
                    seen["tokens"] = 0
                    row = self.decode(runner, reader, stop, profile=turn == 2)
                    if turn:
                        name = "none" if reader is None else reader.__name__
                        note(
                            rows, model=self.name, part="steady", drafts=k, adaptive=adaptive, reader=name,
                            stop=bool(stop), **row,
                        )  # fmt: skip
            runner.close()

    def decode(
        self, runner: ModelRunner, reader: Callable[[StreamDelta], None] | None, stop: list[str], *, profile: bool
    ) -> dict[str, Any]:
        """Steps of which all decode 64 requests."""
        params = SamplingParams(max_new_tokens=900, stop=stop)
        for i, prompt in enumerate(self.prompts(SLOTS, 100)):
            runner.add_request(Request(str(i), prompt, params, reader))
        for _ in range(8):
            runner.step()
        freeze_heap()
        before, count = runner.summary(), 80
        start, cpu = time.perf_counter(), time.thread_time()
        if profile and self.device == "cuda":
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
                for _ in range(20):
                    runner.step()
                torch.cuda.synchronize()
            row: dict[str, Any] = {"gpu_busy": busy(profiler)}
        else:
            for _ in range(count):
                runner.step()
            seconds, cpu = time.perf_counter() - start, time.thread_time() - cpu
            after = runner.summary()
            stages = after["seconds_by_stage"]
            waited = stages["wait"] - before["seconds_by_stage"]["wait"]
            gained = after["emitted_tokens"] - before["emitted_tokens"]
            row = {
                "running": runner.load().running,
                "tokens_per_s": gained / seconds,
                "us_per_step": 1e6 * seconds / count,
                "engine_thread_us": 1e6 * (seconds - waited) / count,
                "thread_time_us": 1e6 * cpu / count,
            }
        for i in range(SLOTS):
            runner.cancel(str(i))
        runner.run()
        return row

    def gaps(self, rows: list[dict[str, Any]]) -> None:
        """Long prompts beside decoding requests."""
        registry = or_default(None)
        runner = self.runner(0, OTHERS + 2 * CHUNK + 4, prefill_chunk=CHUNK, mixed_step_ratio=1.5)
        limit = runner.scheduler.prompt_limit
        others = self.prompts(OTHERS, SHORT)
        observed = Observed(runner, registry)
        long = self.rng.integers(300, self.model.config.vocab_size - 1, LONG).tolist()
        with observed.watching():
            for turn in range(1):
                for arrive in (1, 4):
                    for ratio in (None, 1.5):
                        runner.scheduler.prompt_limit = limit if ratio else lambda decoding: None
                        for _ in range(3 if turn == 0 else 1):
                            sample(observed, others, long, arrive)
                        freeze_heap()
                        found = figures([sample(observed, others, long, arrive) for _ in range(SAMPLES)])
                        note(rows, model=self.name, part="gaps", turn=turn, arrive=arrive, ratio=ratio, **found)
        if self.device == "cuda":
            for ratio in (None, 1.5):
                runner.scheduler.prompt_limit = limit if ratio else lambda decoding: None
                note(rows, model=self.name, part="kernels", ratio=ratio, **self.kernels(runner, others, long))
        assert runner.prefill_budget is not None
        known = {f"{slots}x{size}": 1e6 * mean.seconds for (slots, size), mean in runner.prefill_budget.means.items()}
        note(
            rows,
            model=self.name,
            part="budget",
            limit=limit(OTHERS),
            us_by_slots_and_size=known,
            late=runner.compiler.late,
        )
        runner.close()

    def kernels(self, runner: ModelRunner, others: list[list[int]], long: list[int]) -> dict[str, Any]:
        """Microseconds of kernels in a step without prompts and in one with, by name."""
        for i, prompt in enumerate(others):
            runner.add_request(Request(str(i), prompt, SamplingParams(max_new_tokens=400)))
        for _ in range(12):
            runner.step()
        found: dict[str, Any] = {}
        for name, steps in (("pure", 10), ("mixed", 5)):
            if name == "mixed":
                runner.add_request(Request("long", long, SamplingParams(max_new_tokens=1)))
                for _ in range(3):
                    runner.step()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
                for _ in range(steps):
                    runner.step()
                torch.cuda.synchronize()
            spent: dict[str, float] = {}
            for event in profiler.events():
                if event.device_type == torch.autograd.DeviceType.CUDA:
                    spent[event.name] = spent.get(event.name, 0.0) + event.time_range.elapsed_us() / steps
            first = sorted(spent.items(), key=lambda one: -one[1])[:10]
            found[name] = {
                "all": sum(spent.values()),
                "busy": busy(profiler),
                **{n[:50]: round(us, 1) for n, us in first},
            }
        for i in range(len(others)):
            runner.cancel(str(i))
        runner.run()
        return found


def busy(profiler: Any) -> float:
    """The share of the time from the first kernel to the last in which one runs."""
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    if not spans:
        return 0.0
    covered, until = 0.0, spans[0][0]
    for start, end in spans:
        covered += max(end - max(start, until), 0.0)
        until = max(until, end)
    return covered / (until - spans[0][0])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--models", nargs="+", default=["embedded", "1.2B"])
    parser.add_argument("--parts", nargs="+", default=["gaps", "steady"])
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in given.models:
        bench = Bench(name, given.device)
        print(f"{time.perf_counter() - STARTED:6.1f} loaded {name}", flush=True)
        for part in given.parts:
            if part == "gaps" or name == "embedded":
                getattr(bench, part)(rows)
                write(rows, given.out)
        del bench
        gc.collect()


if __name__ == "__main__":
    main()
