"""Decoding of Llamas of 1.2 and 8 B random parameters over ranks, a GPU each: step times and tokens per second.

``python benchmarks/tensor_parallel.py --out FILE`` measures 1 rank and ``--ranks`` of them with 1, 8 and 64 requests,
plain and with n-gram drafts, in captured steps. Ranks exchange results by gathers (NCCL) and through shared memory, in
one run. `alone`: each rank uses its own tensors instead of the others', so the difference
is the cost of communication, including waits. Every rank holds a runner, in lock-step.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from multiprocessing.connection import wait
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from gpu_model import MODELS, adapter, of_transformers
from record import write

import specdec_hal as sd
from specdec_hal.config import parse
from specdec_hal.models.transformers.exchange import Alone, Exchange
from specdec_hal.models.transformers.tensor_parallel import Summed
from specdec_hal.parallel.runner import RankHook
from specdec_hal.runner import ModelRunner, Request, SamplingParams, build_runner
from specdec_hal.runner.metrics import TimedStep
from specdec_hal.runner.plan import Features
from specdec_hal.runner.slot_writer import SlotWriter
from specdec_hal.tensors.group import ProcessGroup
from specdec_hal.tensors.memory import freeze_heap

PROMPT, NEW_TOKENS = 256, 64
WARM, TURNS = 2, 3
WAYS = ("alone", "gathered", "shared")
"""How ranks exchange."""


class Gathering(Alone):
    """A group that gathers although kernels could share memory."""

    def __init__(self, group: ProcessGroup) -> None:
        super().__init__(group)
        self.gather, self.gather_objects = group.gather, group.gather_objects  # type: ignore[method-assign]


def use(model: Any, exchange: Exchange) -> None:
    """Let the model's ranks exchange by it."""
    model._exchange = exchange
    for layer in model._decoder.model.modules():
        if isinstance(layer, Summed) and layer.exchange is not None:
            layer.exchange = partial(exchange.add, *layer.exchange.args)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--models", nargs="+", default=["1.2B", "8B"], choices=MODELS)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--drafts", type=int, nargs="+", default=[0, 5])
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--layers", type=int, help="fewer for a quick look")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    figures: dict[str, Any] = {"dtype": "bfloat16", "layers": args.layers, "prompt": PROMPT, "new_tokens": NEW_TOKENS}
    with ThreadPoolExecutor(2) as pool:  # a GPU for each model
        one = [pool.submit(first_of, 1, work, 1, args, [name], gpu) for gpu, name in enumerate(args.models)]
        figures["1 rank"] = [row for found in one for row in found.result()]
    write(figures, args.out)
    if args.ranks > 1:
        figures[f"{args.ranks} ranks"] = first_of(args.ranks, work, args.ranks, args, args.models, 0)
        write(figures, args.out)


def first_of(size: int, work: Callable[..., None], *args: Any) -> Any:
    """What the first of `size` ranks has found.

    Each runs ``work(rank, *args, folder, result)``: they meet in `folder`, and the first writes JSON to `result`.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result = folder / "figures.json"
        ranks = [context.Process(target=work, args=(rank, *args, folder, result)) for rank in range(size)]
        for process in ranks:
            process.start()
        while running := [process.sentinel for process in ranks if process.exitcode is None]:
            wait(running)
            failed = [rank for rank, process in enumerate(ranks) if process.exitcode]
            if failed:  # the others would wait for it
                for process in ranks:
                    process.kill()
                break
        if failed:
            raise SystemExit(f"ranks {failed} of {size} failed; what they said stands above")
        return json.loads(result.read_text())


def work(rank: int, size: int, args: argparse.Namespace, models: list[str], gpu: int, folder: Path, out: Path) -> None:
    """The life of a rank; the first writes the figures."""
    device = f"cuda:{gpu + rank}"
    torch.cuda.set_device(device)
    group = ProcessGroup(rank, size, str(folder / "meet"), 300, device) if size > 1 else None
    found = []
    for name in models:
        rows = measure(name, args, device, sd.get_backend("cuda", options={"device": gpu + rank}), group)
        found += [{"model": name, **row} for row in rows]
        torch.cuda.empty_cache()
    if rank == 0:
        out.write_text(json.dumps(found))
    if group is not None:
        group.close()


def measure(name: str, args: argparse.Namespace, device: str, backend: Any, group: Any) -> Iterator[Any]:
    """Figures by requests and drafts; `group`: None for the model that nobody has split."""
    config = MODELS[name]()
    config.num_hidden_layers = args.layers or config.num_hidden_layers
    torch.manual_seed(0)  # the same weights on every rank
    model = adapter(of_transformers(config), group)
    ways: dict[str, Any] = {"whole": None}
    if group is not None:
        made = {"alone": Alone(group), "gathered": Gathering(group)}
        exchanges = {way: Exchange(of, model._exchange.launcher) for way, of in made.items()}
        ways = {way: exchanges.get(way, model._exchange) for way in args.ways}
    compile_kernels(model, backend, ways, max(args.requests), args.drafts, group)
    for requests, k, (way, exchange) in product(args.requests, args.drafts, ways.items()):
        if exchange is not None:
            use(model, exchange)
        row = {"requests": requests, "drafts": k, "way": way, **decode(model, backend, requests, k, group, way)}
        if group is None or group.rank == 0:
            print(json.dumps(row), flush=True)
        yield row


def compile_kernels(model: Any, backend: Any, ways: Any, requests: int, drafts: list[int], group: Any) -> None:
    """Compile the kernels of all steps in parallel."""
    for way, exchange in ways.items():
        if exchange is not None:
            use(model, exchange)
        with model.compiling():
            for k in drafts:
                runner = runner_of(model, backend, requests, k, group, way)
                SlotWriter(runner.state).apply(runner.scheduler.idle())
                planner = runner.compiler
                for bucket in planner._buckets(Features()):
                    planner._plan(bucket).run(planner.state.device.stream(), TimedStep())


def runner_of(model: Any, backend: Any, requests: int, k: int, group: Any, way: str) -> Any:
    """A runner for so many requests."""
    engine = {"tensor_parallel": 1 if group is None else group.size, "digest_interval": None}
    settings = parse({
        "engine": engine,
        "runner": {"max_num_seqs": requests, "max_model_len": PROMPT + NEW_TOKENS + 64, "prefill_chunk": 2048},
        "speculative": {"method": "ngram" if k else "naive", "num_speculative_tokens": k},
    })  # fmt: skip
    if group is None:
        return build_runner(settings, backend, model)
    return build_runner(settings, backend, model, hook=RankHook(settings, group))


def decode(model: Any, backend: Any, requests: int, k: int, group: Any, way: str) -> dict[str, Any]:
    """Times of steps in which all requests decode, of the turns in which nothing compiles or is captured: the median.

    `us_of_one_step`: the median of all steps' times, which a step that waits for the host or for a rank hardly changes.
    """
    runner = runner_of(model, backend, requests, k, group, way)
    found, each = [], list[float]()
    for turn in range(WARM + TURNS):
        if turn >= WARM:
            runner.forget()
            freeze_heap()
            if group is not None:
                group.gather_objects(None)  # begin together
        for request in prompts(model.config.vocab_size, requests):
            runner.add_request(request)
        while runner.has_requests and not all_decode(runner):
            runner.step()
        before, times = runner.metrics.steps, [time.perf_counter()]
        tokens = -sum(len(one.token_ids) for one in runner.streams)
        while runner.has_requests:
            runner.step()
            times.append(time.perf_counter())
        seconds, steps = times[-1] - times[0], runner.metrics.steps - before
        outputs = runner.take_finished()
        tokens += sum(len(one.token_ids) for one in outputs.values())
        if turn >= WARM:
            found.append(seconds / steps)
            each += np.diff(times).tolist()
    summary = runner.summary()
    if not summary["graphs"] or summary["failed_steps"]:
        raise SystemExit(f"expected captured steps, got {summary}")
    seconds = median(found) * steps
    return {
        "us_per_step": round(1e6 * seconds / steps, 1),
        "us_of_turns": [round(1e6 * one, 1) for one in found],
        "us_of_one_step": round(1e6 * median(each), 1),
        "tokens_per_s": round(tokens / seconds, 1),
        "tokens_per_step_and_request": round(tokens / steps / requests, 3),
    }


def all_decode(runner: ModelRunner) -> bool:
    """Whether every request has a token."""
    return all(one.token_ids for one in runner.streams)


def prompts(vocab_size: int, count: int) -> Iterable[Request]:
    """Texts that repeat themselves, so that there is something to look up."""
    rng = np.random.default_rng(0)
    for i in range(count):
        ids = np.tile(rng.integers(0, vocab_size, PROMPT // 4), 4).tolist()
        yield Request(str(i), ids, SamplingParams(max_new_tokens=NEW_TOKENS, temperature=0))


if __name__ == "__main__":
    main()
