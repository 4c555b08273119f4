"""Decoding of a Llama of 8 B random parameters over ranks, a GPU each: step times, communication, tokens per second.

``python benchmarks/tensor_parallel.py --out FILE`` measures 1 rank and ``--ranks`` of them with 1, 8 and 64 requests,
plain and with n-gram drafts, in captured steps. What communication takes is the difference to the same steps where each
rank copies its own tensors instead: the wait for the other ranks included. Every rank holds a runner, in lock-step.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from ranks import first_of
from record import write

import specdec_hal as sd
from specdec_hal.config import parse
from specdec_hal.models.checkpoint import LlamaConfig
from specdec_hal.models.llama_cuda import LlamaCuda
from specdec_hal.models.llama_cuda_tp import TensorParallelLlamaCuda
from specdec_hal.models.tp_weights import WeightsPart
from specdec_hal.models.weights import expected_shapes
from specdec_hal.parallel.runner import RankRunner
from specdec_hal.runner import ModelRunner, Request, SamplingParams
from specdec_hal.tensors.group import ProcessGroup
from specdec_hal.tensors.memory import freeze_heap

SHAPE = LlamaConfig(
    vocab_size=128_256,
    hidden_size=4096,
    max_position_embeddings=8192,
    intermediate_size=14_336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    rope_theta=500_000.0,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
)
PROMPT, NEW_TOKENS = 256, 128


class Alone:
    """A group that tells nobody anything: each rank has its own tensors in place of the others'."""

    capturable = True

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def gather(self, tensor: Any) -> Any:
        """As often as there are ranks."""
        return tensor.expand(self.size, *tensor.shape).contiguous()

    def gather_objects(self, value: Any) -> list[Any]:
        """As often as there are ranks."""
        return [value] * self.size


def random_weights(config: LlamaConfig, device: str, dtype: str, part: WeightsPart | None) -> dict[str, Any]:
    """What a rank has of weights that do not depend on the number of ranks."""
    weights = {}
    for name, shape in expected_shapes(config).items():
        generator = torch.Generator(device).manual_seed(crc32(name.encode()))
        weight = torch.randn(shape, generator=generator, device=device, dtype=getattr(torch, dtype))
        if len(shape) == 1:
            weight = 1 + 0.1 * weight
        elif "embed" not in name:
            weight /= shape[1] ** 0.5
        weights[name] = weight if part is None else weight[part.slices(name)].clone()
    return weights


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--drafts", type=int, default=5)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--layers", type=int, default=SHAPE.num_hidden_layers, help="fewer for a quick look")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    figures: dict[str, Any] = {"dtype": args.dtype, "layers": args.layers, "prompt": PROMPT, "new_tokens": NEW_TOKENS}
    for ranks in dict.fromkeys((1, args.ranks)):
        figures[f"{ranks} ranks"] = first_of(ranks, work, ranks, args)
    write(figures, args.out)


def work(rank: int, size: int, args: argparse.Namespace, folder: Path, result: Path) -> None:
    """The life of a rank; the first writes the figures."""
    device = f"cuda:{rank}"
    torch.cuda.set_device(device)
    config = LlamaConfig(**{**vars(SHAPE), "num_hidden_layers": args.layers})
    group = ProcessGroup(rank, size, str(folder / "meet"), 300, device) if size > 1 else None
    found = measure(config, args, device, sd.get_backend("cuda", options={"device": rank}), group)
    if rank == 0:
        result.write_text(json.dumps(found))
    if group is not None:
        group.close()


def measure(config: LlamaConfig, args: argparse.Namespace, device: str, backend: Any, group: Any) -> list[Any]:
    """Figures by requests and drafts; `group`: None for the model that nobody has split."""
    part = None if group is None else WeightsPart(config, group.rank, group.size)
    weights = random_weights(config, device, args.dtype, part)
    model = LlamaCuda(config, weights) if part is None else TensorParallelLlamaCuda(part, weights, group=group)
    found = []
    for requests in args.requests:
        for k in (0, args.drafts):
            row = {"requests": requests, "drafts": k, **decode(model, backend, requests, k, group)}
            if group is not None and not k:
                model._group = Alone(group.rank, group.size)
                alone = decode(model, backend, requests, k, model._group)
                model._group = group
                row["us_per_step_alone"] = alone["us_per_step"]
                row["communication"] = round(1 - alone["us_per_step"] / row["us_per_step"], 3)
            found.append(row)
            if group is None or group.rank == 0:
                print(json.dumps(row), flush=True)
    return found


def decode(model: Any, backend: Any, requests: int, k: int, group: Any) -> dict[str, Any]:
    """Times of steps in which all requests decode, the third time that they come: nothing compiles or is captured."""
    settings = parse({
        "engine": {"tensor_parallel": 1 if group is None else group.size, "digest_interval": None},
        "runner": {"max_num_seqs": requests, "max_model_len": PROMPT + NEW_TOKENS + 64, "prefill_chunk": 2048},
        "speculative": {"method": "ngram" if k else "naive", "num_speculative_tokens": k},
    })  # fmt: skip
    if group is None:
        runner = ModelRunner(settings, backend, model)
    else:
        runner = RankRunner(settings, backend, model, group=group)
    for turn in range(3):
        if turn == 2:
            runner.forget()
            freeze_heap()
            if group is not None:
                group.gather_objects(None)  # begin together
        for request in prompts(model.config.vocab_size, requests):
            runner.add_request(request)
        while runner.has_requests and not all_decode(runner):
            runner.step()
        before, start = runner.metrics.steps, time.perf_counter()
        tokens = -sum(len(one.token_ids) for one in runner.streams)
        while runner.has_requests:
            runner.step()
        seconds, steps = time.perf_counter() - start, runner.metrics.steps - before
        outputs = runner.take_finished()
        tokens += sum(len(one.token_ids) for one in outputs.values())
    summary = runner.summary()
    if not summary["graphs"] or summary["failed_steps"]:
        raise SystemExit(f"expected captured steps, got {summary}")
    return {
        "us_per_step": round(1e6 * seconds / steps, 1),
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
