"""Rows that are longer than any tile or short list, with every kind of tie and degenerate value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from specdec_hal.ops import LogprobMode, get_op
from specdec_hal.ops.inputs.generate import generate
from specdec_hal.ops.inputs.rows import to_logits

STYLES = ("smooth", "tied", "zeros", "constant", "mostly -inf", "+inf", "close", "steep", "nan", "all -inf", "leading")
PARAMS = [
    (temperature, top_p, top_k, min_p)
    for temperature in (1.0, 0.6, 3.0)
    for top_p in (1.0, 0.9, 0.3, 0.9999999, 0.0)
    for top_k in (0, 1, 50, 400)
    for min_p in (0.0, 0.05)
]
ODD_PARAMS = [
    *[(0, 1, 0, 0), (np.nan, 0.5, 3, 0), (1e-45, 0.9, 9, 0.5), (3e38, 0.5, 0, 0), (np.inf, 0.5, 7, np.nan)],
    *[(np.inf, 0.5, 0, 0), (np.inf, 0.9, 400, 0), (np.inf, 0.9, 0, 0.05)],  # all weigh the same, but for -inf
    *[(1, 1, 0, 0), (0.7, 1, 0, 0), (1, 1, 0, 0.05)],  # nothing is cut off the order
    *[(1, -1, 0, 0), (1, 2, 0, 0), (1, np.nan, 0, 0), (1, 1, -3, 0), (1, 1, 2**31 - 1, 0), (1, 1, 0, 1e-30)],
    *[(1e-30, 1, 0, 0), (np.inf, 1, 0, 0), (1, 0.99998, 0, 0), (1, 0.999, 0, 0), (0.05, 0.5, 0, 0)],
]


def row_of(style: str, v: int, rng: np.random.Generator) -> np.ndarray:
    """One float32 row of logits."""
    row = rng.normal(size=v).astype(np.float32) * 3
    if style == "tied":
        row = np.rint(row)
    elif style == "zeros":
        row = rng.choice(np.array([0.0, -0.0, 1e-45, -1e-45, 1.0], np.float32), v)
    elif style == "constant":
        row[:] = -2.5
    elif style == "mostly -inf":
        row[rng.random(v) < 0.9] = -np.inf
        row[rng.integers(v)] = 0.5
    elif style == "+inf":
        row[rng.random(v) < 0.3] = np.inf
        row[rng.integers(v)] = np.inf
    elif style == "close":
        row = np.float32(20) + rng.integers(-300, 1, v).astype(np.float32) * np.float32(2**-19)
    elif style == "steep":
        row *= 40
    elif style == "nan":
        row[rng.integers(v)] = np.nan
    elif style == "all -inf":
        row[:] = -np.inf
    elif style == "leading":  # large logits lie together, as those of frequent tokens do
        row += 9 * np.exp(-np.arange(v) / (v / 8)).astype(np.float32)
    return row


def sampling(style: str, dtype: str, v: int, seed: int, some: int = 20) -> dict[str, Any]:
    """Inputs of `sample_target`: one row for each of `some` parameter sets and of the odd ones."""
    rng = np.random.default_rng([seed, v])
    params = np.array([PARAMS[i] for i in rng.choice(len(PARAMS), some, False)] + ODD_PARAMS)
    n = len(params)
    return {
        "logits": to_logits(np.array([row_of(style, v, rng) for _ in range(n)]), dtype),
        "row_temperature": params[:, 0].astype(np.float32), "row_top_p": params[:, 1].astype(np.float32),
        "row_top_k": params[:, 2].astype(np.int32), "row_min_p": params[:, 3].astype(np.float32),
        "row_seed": rng.integers(-(2**63), 2**63 - 1, n), "position": rng.integers(0, 2**40, n),
        "target_tokens": np.full(n, 99), "logprobs": np.full(n, 7, np.float32), "ranks": np.full(n, 7),
        "logprob_mode": LogprobMode(seed % 2),
    }  # fmt: skip


def few(style: str, dtype: str, v: int, seed: int) -> dict[str, Any]:
    """Six rows without log-probabilities: three without a filter, one of them unused, and three with filters."""
    inputs = sampling(style, dtype, v, seed, some=3)
    bare = (inputs["row_top_p"] >= 1) & (inputs["row_top_k"] == 0) & (inputs["row_min_p"] <= 0)
    rows = np.concatenate([np.flatnonzero(bare)[:3], np.flatnonzero(~bare)[:3]])
    chosen = {name: inputs[name][rows] for name in inputs if name not in ("logprobs", "ranks", "logprob_mode")}
    chosen["position"][1] = -1
    return chosen


def probabilities(inputs: dict[str, Any]) -> dict[str, Any]:
    """Inputs of `processed_probs` from those of `sample_target`."""
    shared = {name: inputs[name] for name in get_op("processed_probs").by_name if name in inputs}
    return {**shared, "probs": np.full(inputs["logits"].shape, 7, np.float32)}


def candidates(v: int, c: int, top_p: float, seed: int = 0) -> dict[str, Any]:
    """Inputs of `top_p_candidates`: smooth, tied, vanishing, uniform and impossible probabilities."""
    rng = np.random.default_rng([seed, v, c])
    smooth = rng.exponential(size=(3, v))
    ties = rng.integers(0, 3, (2, v)) / 64
    zeros = rng.choice([0.0, -0.0, 1e-45, np.nan, 1e-30], (2, v))
    odd = rng.choice([0.0, -1.0, 2.0, np.inf, -np.inf, 3e38, 0.25], (2, v))
    probs = np.concatenate([smooth / smooth.sum(1, keepdims=True), ties, zeros, odd, np.full((1, v), 1 / v)])
    rows = len(probs)
    return {
        "probs": probs.astype(np.float32), "top_p": np.array([top_p], np.float32),
        "batch_id_per_token_output": np.zeros(rows, np.int32), "candidate_scores": np.full((rows, c), 7, np.float32),
        "candidate_ids": np.full((rows, c), 7, np.int64), "candidate_lens": np.full(rows, 7, np.int32),
    }  # fmt: skip


def logprobs(style: str, dtype: str, v: int, n: int, seed: int = 0, rows: int = 6) -> dict[str, Any]:
    """Inputs of `token_logprobs`."""
    rng = np.random.default_rng([seed, v, n])
    return {
        "logits": to_logits(np.array([row_of(style, v, rng) for _ in range(rows)]), dtype),
        "rows": rng.permutation(rows).astype(np.int32),
        "token_ids": rng.integers(0, v, rows),
        "cu_batch_token_offset": np.array([0, rows], np.int32),
        "ids": np.full((rows, n), 7, np.int64),
        "logprobs": np.full((rows, n), 7, np.float32),
        "ranks": np.full(rows, 7, np.int64),
    }


def rounding() -> Iterator[dict[str, Any]]:
    """Inputs of `apply_penalties` that make it round every kind of value to 16 bits: logit / r or logit * r."""
    bits = np.random.default_rng(1).integers(0, 2**16, 20_000).astype(np.uint16)
    v = len(bits)
    for dtype in ("float16", "bfloat16"):
        for repetition in (1.0, 1.1, 3e4, 1e-7, 2**-14, 4096.0, 1e-30):
            inputs = generate("apply_penalties", 1, M=1, B=1, S=1, V=v, L=v, R_cap=1, W=0, E=0, dtype=dtype)
            yield inputs | {
                "logits": (bits.view(np.float16) if dtype == "float16" else bits).reshape(1, v).copy(),
                "token_ids_all": np.arange(v).reshape(1, v),
                "prompt_lens": np.array([v]),
                "step_idx": np.array([0]),
                "cu_seqlens_q_output": np.array([0, 1], np.int32),
                "batch_id_per_token_output": np.array([0], np.int32),
                "repetition": np.array([repetition], np.float32),
            }


PENALTY_SIZES = [(1, 3), (511, 70), (1024, 128), (1025, 127), (1025, 128), (1030, 3000), (4099, 600), (300, 32_800)]
"""Vocabulary and history: about as much as decides whether rows are penalised by tiles of 1,024 ids."""


def penalties(dtype: str, v: int, length: int, seed: int) -> dict[str, Any]:
    """Inputs of `apply_penalties` whose text has every id now and then, and those at the edges of tiles often."""
    rng = np.random.default_rng([seed, v, length])
    m, s = 4, 5
    size = {"M": m, "B": m, "S": s, "L": length, "V": v, "R_cap": m * s}
    inputs = generate("apply_penalties", seed, dtype=dtype, states=("decode",), **size)
    edges = np.concatenate([np.arange(0, v + 512, 512), np.arange(-1, v + 512, 512), [v, 2**40, -(2**62)]])
    text = np.where(rng.random((m, length)) < 0.5, rng.choice(edges, (m, length)), rng.integers(0, v, (m, length)))
    prompt_lens = np.array([0, length // 3, length, length - 1])
    return inputs | {
        "token_ids_all": text,
        "draft_tokens": np.where(rng.random((m, s)) < 0.5, rng.choice(edges, (m, s)), rng.integers(0, v, (m, s))),
        "prompt_lens": prompt_lens,
        "step_idx": length - prompt_lens,
        "cu_seqlens_q_output": np.arange(m + 1, dtype=np.int32) * s,
        "batch_id_per_token_output": np.repeat(np.arange(m, dtype=np.int32), s),
        "repetition": np.array([1.1, 1.0, 0.7, 2.0], np.float32),
        "frequency": np.array([0.1, 0.3, 0.0, -0.0], np.float32),
        "presence": np.array([0.0, 0.7, 0.0, 0.0], np.float32),
    }
