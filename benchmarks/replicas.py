"""Batch generation by several replicas of one machine's processors: rows and tokens per second, beside one replica.

``python benchmarks/replicas.py --replicas 1 2 4 --threads 4 --out FILE``. A replica here is a process that takes blocks
from a queue, without Ray's overhead. Any number of replicas must give the same bytes; the clock starts after every
replica has answered a warm-up block.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from record import write

import specdec_hal as sd
from specdec_hal.batch.blocks import OutputFolder, scan
from specdec_hal.batch.replica import Replica, dump

ROOT = Path(__file__).parents[1]
_WARM = 1 << 20
"""Numbers of blocks whose answers nobody reads."""


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2])
    parser.add_argument(
        "--threads", type=int, default=1, help="of each replica; times replicas, at most the processors"
    )
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--block-size", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--config", type=Path, default=ROOT / "configs/xpu_sim.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    cores, wanted = len(os.sched_getaffinity(0)), max(args.replicas) * args.threads
    if wanted > cores:
        raise SystemExit(
            f"expected {wanted} processors for {max(args.replicas)} replicas, got {cores}; lower --threads"
        )
    config = dump(sd.load(args.config, ["model.framework=torch", *args.set]).config)
    found: dict[int, list[float]] = {count: [] for count in args.replicas}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "prompts.jsonl")
        texts = [path.read_text() for path in sorted((ROOT / "examples/prompts").glob("*.txt"))]
        rows = ({"prompt": texts[i % len(texts)][i // len(texts) :]} for i in range(args.rows))
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        answers, tokens = set(), 0
        for turn in range(args.turns):
            for count in args.replicas:
                output = Path(folder, f"{turn}-{count}")
                seconds, tokens, text = answer(config, source, output, count, args)
                found[count].append(tokens / seconds)
                answers.add(text)
                print(f"{count} replicas: {tokens / seconds:.1f} tokens/s", flush=True)
    if len(answers) != 1:
        raise SystemExit("expected the same answers from any number of replicas, got others")
    best = {count: max(values) for count, values in found.items()}
    names = ("threads", "rows", "block_size", "turns")
    figures = {name: getattr(args, name) for name in names} | {"processors": cores, "tokens": tokens}
    figures["tokens_per_s"] = {count: [round(value, 1) for value in values] for count, values in found.items()}
    first = args.replicas[0]
    figures["best_over_first"] = {count: round(value / best[first], 3) for count, value in best.items()}
    write(figures, args.out)


def answer(
    config: dict[str, Any], source: Path, output: Path, count: int, args: argparse.Namespace
) -> tuple[float, int, bytes]:
    """Seconds and tokens of all blocks but those that warm the replicas, and all answers."""
    blocks = scan(source, args.block_size).blocks
    folder = OutputFolder(output)
    with folder.begun({}):
        context = multiprocessing.get_context("spawn")
        # Read when libraries are loaded, so before there are processes.
        os.environ.update(OMP_NUM_THREADS=str(args.threads), MKL_NUM_THREADS=str(args.threads))
        tasks, done = context.Queue(), context.Queue()
        settings = {"config": config, "source": str(source), "output": str(output), "max_crashes": 1}
        replicas = [
            context.Process(target=work, args=(rank, settings, args.threads, tasks, done)) for rank in range(count)
        ]
        for process in replicas:
            process.start()
        try:
            for _ in range(count):
                done.get(timeout=300)  # every replica has warmed itself
            start, tokens = time.perf_counter(), 0
            for block in blocks:
                tasks.put(asdict(block))
            for _ in blocks:
                tokens += done.get(timeout=600)["tokens"]
            seconds = time.perf_counter() - start
        finally:
            for _ in replicas:
                tasks.put(None)
            for process in replicas:
                process.join(10)
                process.kill()
        rows = [row for block in blocks for row in folder.answers(block)]
        return seconds, tokens, json.dumps(rows).encode()


def work(rank: int, settings: dict[str, Any], threads: int, tasks: Any, done: Any) -> None:
    """The life of a replica."""
    import torch

    torch.set_num_threads(threads)
    replica = Replica(**settings)
    first = asdict(scan(Path(settings["source"]), 8).blocks[0])
    replica({**first, "number": _WARM + rank})
    done.put({})
    while (item := tasks.get()) is not None:
        done.put(replica(item))


if __name__ == "__main__":
    main()
