"""Sampling where every rank has a part of each row of logits: from gathered rows, and from the parts.

``python benchmarks/vocabulary_parallel.py`` takes a GPU a rank, NCCL and captured graphs. Gathered rows go to the
backend's `sample_target`. Times are the first rank's, communication included; both have to give the same tokens.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from ranks import first_of
from record import write

import specdec_hal as sd
from specdec_hal.bench.timing import Figures
from specdec_hal.parallel.vocabulary import ShardedLogitsHead
from specdec_hal.runner import SamplingParams
from specdec_hal.tensors.group import ProcessGroup

KINDS: dict[str, SamplingParams] = {
    "greedy": SamplingParams(temperature=0),
    "unfiltered": SamplingParams(temperature=0.8),
    "top_k 20, top_p 0.9": SamplingParams(temperature=0.8, top_k=20, top_p=0.9),
    "min_p 0.05": SamplingParams(temperature=0.8, min_p=0.05),
}
"""What all rows ask for."""


class Head:
    """The part's logits are there."""

    compute_logits_part_device = None


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rows", type=int, default=64 * 6)
    parser.add_argument("--vocabulary", type=int, default=128_256)
    parser.add_argument("--spread", type=float, default=3.0, help="standard deviation of the logits")
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    write(first_of(args.ranks, work, args), args.out)


def work(rank: int, args: argparse.Namespace, folder: Path, result: Path) -> None:
    """The life of a rank; the first writes the figures."""
    group = ProcessGroup(rank, args.ranks, str(folder / "meet"), timeout_s=300, device=f"cuda:{rank}")
    logits = torch.randn(args.rows, args.vocabulary, generator=torch.Generator().manual_seed(0)) * args.spread
    kinds = {name: compare(group, logits.to(f"cuda:{rank}"), asked, args.repeats) for name, asked in KINDS.items()}
    if rank == 0:
        names = ("ranks", "rows", "vocabulary", "spread")
        result.write_text(json.dumps({**{name: getattr(args, name) for name in names}, "kinds": kinds}))
    group.close()


def compare(group: ProcessGroup, logits: Any, asked: SamplingParams, repeats: int) -> dict[str, Any]:
    """Both ways with the same parameters in all rows."""
    (rows, vocabulary), size = logits.shape, group.size
    tokens = torch.zeros(2, rows, dtype=torch.int64, device=logits.device)
    types = {"temperature": torch.float32, "top_p": torch.float32, "top_k": torch.int32, "min_p": torch.float32}
    params = {
        f"row_{name}": torch.full((rows,), getattr(asked, name), dtype=dtype, device=logits.device)
        for name, dtype in types.items()
    }
    params["row_seed"] = torch.full((rows,), 5, device=logits.device)
    params["position"] = 1000 + torch.arange(rows, device=logits.device)
    backend = sd.get_backend("cuda", options={"device": group.rank})

    # Parts of one width, as they have to be to be gathered.
    width = -(-vocabulary // size)
    columns = torch.nn.functional.pad(logits, (0, width * size - vocabulary))[:, group.rank * width :][:, :width]
    columns, whole = columns.contiguous(), torch.empty_like(logits)
    sample = backend.bind("sample_target", logits=whole, target_tokens=tokens[0], **params)

    def gather() -> None:
        whole.copy_(group.gather(columns).transpose(0, 1).flatten(1)[:, :vocabulary])
        sample(torch.cuda.current_stream().cuda_stream)

    part = ShardedLogitsHead(group, vocabulary, backend, Head())  # type: ignore[arg-type]
    needed = part.work_of([asked])
    assert needed is not None
    mine = logits[:, part.first : part.first + part.width].contiguous()

    def sample_parts() -> None:
        part.sample_target(mine, needed, target_tokens=tokens[1], **params)

    found = {way: measure(launch, group, repeats) for way, launch in (("gathered", gather), ("parts", sample_parts))}
    if not torch.equal(*tokens):
        raise SystemExit(f"{asked}: expected the same tokens both ways, got others")
    ratio = round(found["gathered"].median / found["parts"].median, 3)
    return {**{way: {"us": one.rounded()} for way, one in found.items()}, "gathered_over_parts": ratio}


def measure(launch: Callable[[], None], group: ProcessGroup, repeats: int) -> Figures:
    """Microseconds of a captured graph, by events. Ranks begin together."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        launch()
    torch.cuda.synchronize()
    # NCCL's watchdog asks for events from a thread of its own.
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        launch()
    times = []
    for _ in range(repeats):
        group.gather_objects(None)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * begin.elapsed_time(end))
    return Figures.of(times)


if __name__ == "__main__":
    main()
