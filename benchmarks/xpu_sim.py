"""Time of the simulated XPU's ops through bound plans, against their targets, on one core; then the same with every
check of the emulator, as a multiple; and the time of a launch that does nothing. Run:
``taskset -c 0 python benchmarks/xpu_sim.py --out benchmarks/results/NAME.json``
"""

from __future__ import annotations

import argparse
import ctypes
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from record import write

import specdec_hal as sd
from specdec_hal.bench.timing import HostTimer
from specdec_hal.ops import MatchPolicy, Strategy
from specdec_hal.ops.inputs.generate import generate
from specdec_hal.ops.spec import Role
from specdec_hal.plugin.backend import Backend
from specdec_hal_xpu.cc import Build, build

Inputs = dict[str, Any]


def op_time(backend: Backend, op: str, inputs: Inputs, seconds: float) -> dict[str, Any]:
    """The op alone: what it changed is put back between the runs, outside the timing."""
    run = backend.bind(op, **inputs)
    changed = [operand.name for operand in run.call.op.operands if operand.role is Role.INOUT]
    saved = {name: inputs[name].copy() for name in changed if inputs.get(name) is not None}
    run()

    def restore() -> None:
        for name, value in saved.items():
            np.copyto(inputs[name], value)

    times = HostTimer(seconds, most=1 << 30).time(lambda stream: run(), cold=False, restore=restore)
    return {"median_us": round(times.median, 2), "min_us": round(times.minimum, 2), "runs": times.runs}


def verification(strategy: Strategy) -> Inputs:
    """64 slots with 5 drafts each, of which the target model agrees with most."""
    slots, width = 64, 6
    inputs = generate("verify_draft_tokens", 1, M=slots, B=slots, S=width, L=64, V=4096, C=8, E=1, R_cap=slots * width,
                      strategy=strategy, accept_policy="NORMAL", states=("decode",))  # fmt: skip
    inputs["seq_lens_this_time"][:] = width
    inputs["cu_seqlens_q_output"][:] = np.arange(slots + 1) * width
    inputs["max_dec_len"][:], inputs["reasoning_status"][:] = 10**6, 0
    follows = np.roll(inputs["draft_tokens"] % 4096, -1, axis=1).reshape(-1)  # what row r should say
    inputs["draft_tokens"] %= 4096
    agrees = np.random.default_rng(0).random(len(follows)) < 0.8
    if "target_tokens" in inputs:
        inputs["target_tokens"][agrees] = follows[agrees]
    if "candidate_ids" in inputs:
        inputs["candidate_ids"][agrees, 0] = follows[agrees]
    if "target_probs" in inputs:
        inputs["target_probs"][agrees, follows[agrees]] = 1
    return inputs


def long_history(policy: MatchPolicy) -> Inputs:
    """16 slots with 131,072 tokens each, in which the last ones occur nowhere else."""
    slots, length = 16, 131072
    inputs = generate("ngram_match", 0, M=slots, B=slots, S=6, L=8, states=("decode",), index=False, max_ngram_size=3,
                      min_ngram_size=1, token_budget=10**6, match_policy=policy, pad_to_max=False)  # fmt: skip
    text = np.random.default_rng(0).integers(0, 100_000, (slots, length))
    text[:, -3:] = 200_000
    text[:, -1] = 200_001
    inputs["token_ids_all"] = text
    inputs["prompt_lens"][:], inputs["step_idx"][:] = length // 2, length - length // 2
    inputs["max_dec_len"][:], inputs["draft_token_num"][:] = 10**6, 5
    return inputs


def cases() -> Iterator[tuple[str, str, Inputs, float | None]]:
    """Name, op, inputs, target in microseconds."""
    for strategy in (Strategy.TARGET_MATCH, Strategy.TOPP, Strategy.REJECTION):
        target = None if strategy is Strategy.REJECTION else 60
        yield f"verify_draft_tokens, {strategy.name}, B=64 K=5", "verify_draft_tokens", verification(strategy), target
    for op in ("prepare_inputs", "update_model_status"):
        yield f"{op}, B=256 K=5", op, generate(op, 1, M=256, B=256, S=6, L=64, states=("decode",)), 40
    for policy in MatchPolicy:
        yield f"ngram_match, {policy.name}, B=16, history 131072", "ngram_match", long_history(policy), 12000


def decode_step(backend: Backend) -> Iterator[tuple[str, Inputs]]:
    """All ops of one decode step with n-gram drafts, that this backend has: B = 8, K = 5, V = 4096."""
    size = {"M": 8, "B": 8, "S": 6, "L": 512, "V": 4096, "E": 1, "W": 0, "N": 1, "states": ("decode",), "nan": False}
    ops: list[tuple[str, dict[str, Any]]] = [
        ("prepare_inputs", {}),
        ("adjust_batch", {"D": 256, "dtype": "float32"}),
        ("gather_next_token", {"D": 256, "dtype": "float32", "is_speculative": True}),
        ("apply_penalties", {"dtype": "float32"}),
        ("build_sampling_params", {}),
        ("sample_target", {"dtype": "float32"}),
        ("verify_draft_tokens", {"strategy": "TARGET_MATCH", "accept_policy": "NORMAL"}),
        ("update_model_status", {}),
        ("ngram_match", {"max_ngram_size": 4, "min_ngram_size": 2, "token_budget": 10**6, "index": False,
                         "match_policy": "LATEST", "pad_to_max": False}),
    ]  # fmt: skip
    for op, options in ops:
        if backend.capability(op) is not None:
            inputs = generate(op, 1, **size, **options)
            greedy = {"row_temperature": 0, "repetition": 1, "frequency": 0, "presence": 0, "min_dec_len": 0}
            for name, value in greedy.items():
                if name in inputs:
                    inputs[name][:] = value
            yield op, inputs


EMPTY = """\
#include <chrono>

#include "xpu/kernel/cluster.h"
#include "xpu_sim/host.h"

__global__ void empty() {}

extern "C" double empty_launch(int clusters, int cores) {
  const auto start = std::chrono::steady_clock::now();
  xpu_sim::launch(empty, clusters, cores)();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}
"""


def empty_launch(seconds: float) -> dict[str, Any]:
    """12 clusters of 64 cores that return at once."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "empty.xpu"), Path(folder, "libempty.so")
        source.write_text(EMPTY)
        status, _ = build(Build(sources=(source,), output=library, shared=True))
        assert status == 0
        launch = ctypes.CDLL(str(library)).empty_launch
    launch.restype = ctypes.c_double
    times: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(times) < 5:
        times.append(launch(12, 64))
    return {"median_us": round(median(times), 2), "min_us": round(min(times), 2), "runs": len(times), "target_us": 30}


def measure(backend: Backend, seconds: float) -> dict[str, Any]:
    """All cases, and the ops of a decode step together."""
    figures: dict[str, Any] = {}
    for name, op, inputs, target in cases():
        figures[name] = op_time(backend, op, inputs, seconds) | {"target_us": target}
    step = {op: op_time(backend, op, inputs, seconds) for op, inputs in decode_step(backend)}
    total = {key: round(sum(figure[key] for figure in step.values()), 2) for key in ("median_us", "min_us")}
    figures["decode step, B=8 K=5 V=4096"] = {"ops": step, **total, "target_us": 500}
    return figures


def add_checked(figures: dict[str, Any], checked: dict[str, Any]) -> None:
    """Adds the times with every check and their ratio, by the shortest runs, which others disturb least."""
    for name, figure in figures.items():
        if "ops" in figure:
            add_checked(figure["ops"], checked[name]["ops"])
        figure["strict_min_us"] = checked[name]["min_us"]
        figure["strict_ratio"] = round(checked[name]["min_us"] / figure["min_us"], 1)


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each figure")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    figures = measure(sd.get_backend("xpu_sim"), args.seconds)
    add_checked(figures, measure(sd.get_backend("xpu_sim", options={"mode": "strict"}), args.seconds))
    figures["empty launch, 12 clusters x 64 cores"] = empty_launch(args.seconds)
    write(figures, args.out)


if __name__ == "__main__":
    main()
