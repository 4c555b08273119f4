"""Sampling where every rank has a part of each row of logits: from gathered rows, and from the parts.

``python benchmarks/vocabulary_parallel.py`` takes a GPU a rank, NCCL and captured graphs; with ``--device cpu`` gloo
and the clock. Gathered rows go to the backend's `sample_target`. Times are the first rank's, communication included;
both have to give the same tokens. ``--local`` needs one GPU: what the first rank computes between exchanges, captured,
by kernels and by operators of PyTorch; it hears what the others told it once.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from ranks import first_of
from record import write

import specdec_hal as sd
from specdec_hal.bench.timing import Figures
from specdec_hal.parallel.kernels import PartBackend, kernels_of
from specdec_hal.parallel.sampling import VocabularyPart
from specdec_hal.parallel.work import RowParams, Work
from specdec_hal.tensors.group import ProcessGroup

KINDS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0},
    "unfiltered": {"temperature": 0.8},
    "top_k 20, top_p 0.9": {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
    "top_p 0.9": {"temperature": 0.8, "top_p": 0.9},
    "min_p 0.05": {"temperature": 0.8, "min_p": 0.05},
}
"""What all rows ask for."""

Launch = Callable[[], None]


class Exchange:
    """Threads that are ranks of one GPU: each puts a value down, all meet, all read."""

    def __init__(self, size: int) -> None:
        self._values, self._barrier = [None] * size, threading.Barrier(size, timeout=60)

    def of_all(self, rank: int, value: Any) -> list[Any]:
        """The values of all ranks."""
        self._values[rank] = value
        self._barrier.wait()
        values = list(self._values)
        self._barrier.wait()
        return values


class Recorded:
    """A rank that hears what the others said when all ran together, so that one can be timed by itself."""

    capturable = True

    def __init__(self, exchange: Exchange, rank: int, size: int) -> None:
        self.rank, self.size, self._exchange = rank, size, exchange
        self._heard, self._next, self._together = list[Any](), 0, True

    def alone(self) -> None:
        """From here on nobody else runs."""
        self._together = False

    def begin(self) -> None:
        """The same calls come again."""
        self._next = 0

    def gather(self, tensor: Any) -> Any:
        """See Group.gather."""
        if self._together:
            self._heard.append(torch.stack(self._exchange.of_all(self.rank, tensor.clone())))
        self._next += 1
        return self._heard[self._next - 1]

    def gather_objects(self, value: Any) -> list[Any]:
        """See Group.gather_objects."""
        return [value] * self.size


class Counted:
    """A group that counts what a rank sends."""

    def __init__(self, group: ProcessGroup) -> None:
        self.rank, self.size, self._group, self.sent, self.rounds = group.rank, group.size, group, 0, 0
        self.capturable = group.capturable

    def gather(self, tensor: Any) -> Any:
        """See Group.gather."""
        self.sent += tensor.nbytes
        self.rounds += 1
        return self._group.gather(tensor)

    def gather_objects(self, value: Any) -> list[Any]:
        """See Group.gather_objects."""
        return self._group.gather_objects(value)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rows", type=int, default=64 * 6)
    parser.add_argument("--vocabulary", type=int, default=128_256)
    parser.add_argument("--spread", type=float, default=3.0, help="standard deviation of the logits")
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--local", action="store_true", help="what a rank computes by itself, on one GPU")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="with --local")
    args = parser.parse_args()
    write(local(args) if args.local else first_of(args.ranks, work, args), args.out)


def local(args: argparse.Namespace) -> dict[str, Any]:
    """The first rank's work between exchanges: by kernels where there are any, and by operators."""
    device = "cuda:0" if args.device == "cuda" else "cpu"
    backend = _backend(device)
    logits = torch.randn(args.rows, args.vocabulary, generator=torch.Generator().manual_seed(0)) * args.spread
    logits = logits.to(device, getattr(torch, args.dtype))
    kinds: dict[str, Any] = {}
    for name, asked in KINDS.items():
        params, found, ways = (
            params_of(asked, args.rows, device),
            {},
            {"operators": None, "kernels": kernels_of(backend)},
        )
        expected = _of_whole_rows(backend, logits, params)
        for way, kernels in ways.items():
            if way == "operators" or kernels is not None:
                found[way] = {"us": _alone(logits, params, kernels, expected, args).rounded()}
        kinds[name] = found
    names = ("device", "ranks", "rows", "vocabulary", "spread", "dtype")
    return {**{name: getattr(args, name) for name in names}, "local": kinds}


def _alone(
    logits: Any, params: RowParams, kernels: PartBackend | None, expected: Any, args: argparse.Namespace
) -> Figures:
    """All ranks once, as threads, then the first by itself; both have to give the expected tokens."""
    exchange, needed = Exchange(args.ranks), Work.of(params, args.vocabulary)
    groups = [Recorded(exchange, rank, args.ranks) for rank in range(args.ranks)]
    tokens = [torch.zeros_like(expected) for _ in groups]

    def call_of(rank: int) -> Launch:
        part = VocabularyPart(groups[rank], args.vocabulary, kernels)
        mine = logits[:, part.first : part.first + part.width].contiguous()

        def launch() -> None:
            groups[rank].begin()
            part.sample_target(mine, params, tokens[rank], work=needed)

        return launch

    launches = [call_of(rank) for rank in range(args.ranks)]
    with ThreadPoolExecutor(args.ranks) as pool:
        list(pool.map(lambda launch: launch(), launches))
    groups[0].alone()
    figures = measure(launches[0], groups[0], str(logits.device), args.repeats)
    if not all(torch.equal(expected, one) for one in tokens):
        raise SystemExit("expected the tokens of whole rows, got others")
    return figures


def _of_whole_rows(backend: sd.Backend, logits: Any, params: RowParams) -> Any:
    """What `sample_target` gives where a rank has all columns."""
    tokens = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    _sampler(backend, logits, params, tokens)()
    return tokens


def _sampler(backend: sd.Backend, logits: Any, params: RowParams, tokens: Any) -> Launch:
    """A call of `sample_target` over whole rows."""
    operands = {name if name == "position" else f"row_{name}": tensor for name, tensor in params._asdict().items()}
    operands |= {"logits": logits, "target_tokens": tokens}
    op = backend.bind("sample_target", **operands)
    return lambda: op(torch.cuda.current_stream().cuda_stream if logits.is_cuda else 0)


def work(rank: int, args: argparse.Namespace, folder: Path, result: Path) -> None:
    """The life of a rank; the first writes the figures."""
    device = f"cuda:{rank}" if args.device == "cuda" else "cpu"
    group = ProcessGroup(rank, args.ranks, str(folder / "meet"), timeout_s=300, device=device)
    if device == "cpu":
        torch.set_num_threads(1)
    logits = torch.randn(args.rows, args.vocabulary, generator=torch.Generator().manual_seed(0)) * args.spread
    kinds = {name: compare(Counted(group), logits, asked, device, args.repeats) for name, asked in KINDS.items()}
    if rank == 0:
        names = ("device", "ranks", "rows", "vocabulary", "spread")
        result.write_text(json.dumps({**{name: getattr(args, name) for name in names}, "kinds": kinds}))
    group.close()


def compare(group: Counted, logits: Any, asked: dict[str, float], device: str, repeats: int) -> dict[str, Any]:
    """Both ways with the same parameters in all rows."""
    (rows, vocabulary), size = logits.shape, group.size
    params = params_of(asked, rows, device)
    tokens = torch.zeros(2, rows, dtype=torch.int64, device=device)

    # Parts of one width, as they have to be to be gathered.
    width = -(-vocabulary // size)
    columns = torch.nn.functional.pad(logits, (0, width * size - vocabulary))[:, group.rank * width :][:, :width]
    columns, whole = columns.contiguous().to(device), torch.empty(rows, vocabulary, device=device)
    backend = _backend(device)
    sample = _sampler(backend, whole, params, tokens[0])

    def gather() -> None:
        whole.copy_(group.gather(columns).transpose(0, 1).flatten(1)[:, :vocabulary])
        sample()

    part = VocabularyPart(group, vocabulary, kernels_of(backend))
    needed = None if device == "cpu" else Work.of(params, vocabulary)  # as a host works, and a captured step
    mine = logits[:, part.first : part.first + part.width].contiguous().to(device)

    def sample_parts() -> None:
        part.sample_target(mine, params, tokens[1], work=needed)

    found: dict[str, Any] = {}
    for way, launch in (("gathered", gather), ("parts", sample_parts)):
        group.sent = group.rounds = 0
        launch()
        sent = {"bytes_per_row": group.sent / rows, "exchanges": group.rounds}
        found[way] = {**sent, "us": measure(launch, group, device, repeats).rounded()}
    if not torch.equal(*tokens):
        raise SystemExit(f"{asked}: expected the same tokens both ways, got others")
    found["gathered_over_parts"] = round(found["gathered"]["us"]["median"] / found["parts"]["us"]["median"], 3)
    return found


def params_of(asked: dict[str, float], rows: int, device: str) -> RowParams:
    """The same in all rows, but for their positions."""
    plain = {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "seed": 5, "position": 1000, **asked}
    whole_numbers = {"top_k": torch.int32, "seed": torch.int64, "position": torch.int64}
    params = RowParams(*(
        torch.full((rows,), plain[name], dtype=whole_numbers.get(name, torch.float32), device=device)
        for name in RowParams._fields
    ))  # fmt: skip
    params.position.copy_(1000 + torch.arange(rows))
    return params


def measure(launch: Launch, group: Counted | Recorded, device: str, repeats: int) -> Figures:
    """Microseconds: of a captured graph by events, on a host by its clock. Ranks begin together."""
    if device == "cpu":
        return Figures.of([_clocked(launch, group) for _ in range(repeats)])
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


def _clocked(launch: Launch, group: Counted | Recorded) -> float:
    group.gather_objects(None)
    start = time.perf_counter()
    launch()
    return 1e6 * (time.perf_counter() - start)


def _backend(device: str) -> sd.Backend:
    """Of a rank on that device."""
    number = int(device.partition(":")[2] or 0)
    return sd.get_backend("xpu_sim") if device == "cpu" else sd.get_backend("cuda", options={"device": number})


if __name__ == "__main__":
    main()
