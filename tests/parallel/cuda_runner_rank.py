"""A rank of a runner whose model and state are device tensors: what requests of several kinds get.

Arguments: checkpoint, rank, size, file to meet at, device, "nccl" or "gloo", file for the outputs, number of drafts.
With the device "cpu" the tensors are PyTorch's on the host and the kernels run in Triton's interpreter, on fewer and
shorter requests. Size 0 means the model that nobody has split. All ranks compare what they have. Plain steps that are
launched, and steps with drafts or none, captured (NCCL), give the same.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import specdec_hal as sd
from specdec_hal.config import parse
from specdec_hal.parallel.runner import RankHook
from specdec_hal.runner import Request, SamplingParams, build_runner
from specdec_hal.tensors.group import ProcessGroup
from specdec_hal.tensors.on_torch import TorchDevice
from tests.support.device_models import device_model
from tests.support.interpreted import read_late

BEGAN = time.perf_counter()
KINDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.8},
    {"temperature": 0.9, "top_k": 12, "top_p": 0.9},
    {"temperature": 0, "repetition_penalty": 1.3, "logit_bias": {3: 2.0, 70: 2.5}, "prompt_logprobs": 1},
    {"temperature": 1, "allowed_token_ids": [3, 70, 71], "bad_sequences": [[70, 71], [71, 3]]},
    {"temperature": 1.2, "top_p": 0.95},
    {"temperature": 1, "min_p": 0.05, "frequency_penalty": 0.2},
    {"temperature": 1, "top_k": 100, "logprobs": 1},
    {"temperature": 0.8, "logprobs": 0},
    {"temperature": 0.9, "top_k": 12, "logprobs": 2},
]


def requests(vocab: int, short: bool) -> Iterator[Request]:
    """Some with a prompt that repeats itself, so that drafts are accepted."""
    rng = np.random.default_rng(5)
    for i, kind in enumerate(KINDS[:5] if short else KINDS * 2):
        ids = rng.integers(1, vocab, 3 + 2 * (i % 4)).tolist() * (1 if short else 4)
        yield Request(f"r{i}", ids, SamplingParams(max_new_tokens=2 if short else 16, seed=i, **kind))


def main(
    folder: str, rank: int, size: int, rendezvous: str, device: str, transport: str, out: str, drafts: str = "0"
) -> None:
    """Ends with an assertion where any two ways differ."""
    torch.set_num_threads(1)
    short = device == "cpu"
    if short and rank == 1:
        read_late()
    backend = sd.get_backend("reference") if short else sd.get_backend("cuda", options={"device": int(device[5:])})
    if short:
        from specdec_hal.runner import build as module

        module.get_device = lambda device, framework: TorchDevice("cpu")  # type: ignore[assignment]
    group = ProcessGroup(rank, size, rendezvous, 120, device, nccl=transport == "nccl") if size else None
    model = device_model(folder, device, group=group)
    print(f"{time.perf_counter() - BEGAN:.1f} s: loaded", file=sys.stderr, flush=True)

    def outputs(k: int, graph: bool) -> dict[str, Any]:
        method = {"method": "ngram" if k else "naive", "num_speculative_tokens": k, "adaptive": False}
        settings = parse({
            "model": {"path": folder, "framework": "transformers"},
            "engine": {"tensor_parallel": max(size, 1), "digest_interval": 4},
            "runner": {"max_num_seqs": 3, "max_model_len": 128, "graph": graph, "block_size": 16},
            "speculative": method,
        })  # fmt: skip
        hook = None if group is None else RankHook(settings, group)
        runner = build_runner(settings, backend, model, hook=hook)
        for request in requests(model.config.vocab_size, short):
            runner.add_request(request)
        found = {
            name: (one.token_ids, one.logprobs, one.prompt_logprobs, one.finish_reason)
            for name, one in runner.run().items()
        }
        summary = runner.summary()
        print(f"{time.perf_counter() - BEGAN:.1f} s: K = {k}: {summary}", file=sys.stderr, flush=True)
        assert summary["failed_steps"] == summary["graph_failures"] == 0, summary
        assert (summary["graphs"] > 0) == (graph and transport == "nccl"), "captured where that was asked"
        assert not k or short or summary["accepted_tokens"] > 0, "drafts were accepted"
        return found

    found = outputs(0, False)
    if group is not None:
        other = outputs(int(drafts), not short)
        assert short or other == found
        tokens = {name: one[0] for name, one in other.items()}
        assert tokens == {name: one[0] for name, one in found.items()}
        assert all(other == found for other in group.gather_objects(found)), "ranks differ"
    if rank == 0:
        with open(out, "w") as file:
            json.dump({name: one[0] for name, one in found.items()}, file)
    if group is not None:
        group.close()


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # at once: NCCL would wait for captured steps
