"""Time of the simulated XPU's ops over rows of a vocabulary, through bound plans, on one core. Run:
``taskset -c 0 python benchmarks/xpu_sim_rows.py --out benchmarks/results/NAME.json``
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from record import write
from xpu_sim import decode_step, op_time

import specdec_hal as sd
from specdec_hal.conformance.inputs.generate import generate
from specdec_hal.plugin.backend import Backend

Inputs = dict[str, Any]
SETTINGS = {
    "greedy": (0, 1, 0, 0),
    "temperature 1": (1, 1, 0, 0),
    "top_p 0.9": (1, 0.9, 0, 0),
    "top_p 0.9, min_p 0.05": (1, 0.9, 0, 0.05),
    "top_k 50": (1, 1, 50, 0),
    "top_k 500": (1, 1, 500, 0),
    "top_k 2000": (1, 1, 2000, 0),
    "min_p 0.05": (1, 1, 0, 0.05),
    "temperature 0.7, top_k 50, top_p 0.9": (0.7, 0.9, 50, 0),
    "temperature 0.7, top_k 50, top_p 0.9, min_p 0.05": (0.7, 0.9, 50, 0.05),
}
"""Temperature, top_p, top_k, min_p."""


def sampling(logits: np.ndarray, setting: tuple[float, ...]) -> Inputs:
    """What sample_target and processed_probs have in common."""
    rows = len(logits)
    names = ("row_temperature", "row_top_p", "row_top_k", "row_min_p")
    params = {name: np.full(rows, value, np.float32) for name, value in zip(names, setting, strict=True)}
    params["row_top_k"] = params["row_top_k"].astype(np.int32)
    return {"logits": logits, **params, "position": np.arange(rows) + 5}


def row_ops(rows: int, vocabulary: int) -> Iterator[tuple[str, str, Inputs]]:
    """Name, op and inputs for normally distributed logits (standard deviation 2.5)."""
    logits = (np.random.default_rng(0).normal(size=(rows, vocabulary)) * 2.5).astype(np.float32)
    size = f"{rows} x {vocabulary}"
    for name, setting in SETTINGS.items():
        outputs = {"row_seed": np.arange(rows), "target_tokens": np.zeros(rows, np.int64)}
        yield f"sample_target, {name}, {size}", "sample_target", {**sampling(logits, setting), **outputs}
    out = {"probs": np.zeros_like(logits)}
    yield f"processed_probs, top_p 0.9, {size}", "processed_probs", {**sampling(logits, SETTINGS["top_p 0.9"]), **out}
    weights = np.exp(logits)
    inputs: Inputs = {
        "probs": weights / weights.sum(1, keepdims=True),
        "top_p": np.full(rows, 0.9, np.float32),
        "batch_id_per_token_output": np.arange(rows, dtype=np.int32),
        "candidate_scores": np.zeros((rows, 20), np.float32),
        "candidate_ids": np.zeros((rows, 20), np.int64),
        "candidate_lens": np.zeros(rows, np.int32),
    }
    yield f"top_p_candidates, C=20, {size}", "top_p_candidates", inputs
    for n in (1, 11):
        inputs = {
            "logits": logits,
            "rows": np.arange(rows, dtype=np.int32),
            "token_ids": np.arange(rows),
            "cu_batch_token_offset": np.array([0, rows], np.int32),
            "ids": np.zeros((rows, n), np.int64),
            "logprobs": np.zeros((rows, n), np.float32),
            "ranks": np.zeros(rows, np.int64),
        }
        yield f"token_logprobs, N={n}, {size}", "token_logprobs", inputs


def penalties(vocabulary: int, history: int) -> Inputs:
    """8 slots with 6 rows each, repetition penalty on."""
    rng, slots, width = np.random.default_rng(0), 8, 6
    size = {"M": slots, "B": slots, "S": width, "L": history, "V": vocabulary, "R_cap": slots * width, "W": 0, "E": 1}
    inputs = generate("apply_penalties", 1, dtype="float32", nan=False, states=("decode",), **size)
    inputs["token_ids_all"] = rng.integers(0, vocabulary, (slots, history))
    inputs["prompt_lens"][:], inputs["step_idx"][:] = history // 2, history - history // 2
    inputs["cu_seqlens_q_output"][:] = np.arange(slots + 1) * width
    inputs["batch_id_per_token_output"][:] = np.repeat(np.arange(slots), width)
    inputs["repetition"][:], inputs["frequency"][:], inputs["presence"][:] = 1.1, 0, 0
    return inputs


def decode_steps(backend: Backend, figures: dict[str, Any], seconds: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """All ops of a decode step (`xpu_sim.decode_step`) when every one of its 48 rows is sampled."""
    others = {op: inputs for op, inputs in decode_step(backend) if op != "sample_target"}
    rest = sum(op_time(backend, op, inputs, seconds)["median_us"] for op, inputs in others.items())
    for name in SETTINGS:
        sampled = figures[f"sample_target, {name}, 48 x 4096"]["median_us"]
        yield f"decode step, B=8 K=5 V=4096, {name}", {"median_us": round(rest + sampled, 2), "target_us": 500}


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each figure")
    parser.add_argument("--mode", default="fast", help="the backend's option")
    parser.add_argument("--vocabulary", type=int, choices=(4096, 151936), help="only this one; default: both")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    backend = sd.get_backend("xpu_sim", options={"mode": args.mode})
    figures: dict[str, Any] = {}
    chosen = (args.vocabulary,) if args.vocabulary else (4096, 151936)
    for rows, vocabulary in ((8, 4096), (48, 4096), (8, 151936)):
        if vocabulary not in chosen:
            continue
        for name, op, inputs in row_ops(rows, vocabulary):
            figures[name] = op_time(backend, op, inputs, args.seconds)
    for vocabulary, history in ((4096, 600), (151936, 600), (151936, 131072)):
        if vocabulary not in chosen:
            continue
        name = f"apply_penalties, 48 rows, V={vocabulary}, history {history}"
        figures[name] = op_time(backend, "apply_penalties", penalties(vocabulary, history), args.seconds)
    if 4096 in chosen:
        figures.update(decode_steps(backend, figures, args.seconds))
    write(figures, args.out)


if __name__ == "__main__":
    main()
