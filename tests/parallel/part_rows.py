"""Rows of a vocabulary that ranks share, and the tokens of whole ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from specdec_hal.backends.reference import sampling
from specdec_hal.ops import LogprobMode, Purpose
from specdec_hal.parallel.vocabulary import RowFeatures, ShardedLogitsHead
from specdec_hal.runner import SamplingParams

TYPES = [torch.float32, torch.float16, torch.bfloat16]

KINDS: dict[str, tuple[float, float, int, float]] = {
    "greedy": (0, 0.5, 3, 0.5), "unfiltered": (1, 1, 0, 0), "tempered": (0.7, 1, 0, 0), "hot": (3e38, 1, 0, 0),
    "cold": (1e-42, 1, 0, 0), "top_k": (0.8, 1, 7, 0), "top_k 1": (1, 1, 1, 0), "top_k as listed": (1.3, 1, 32, 0),
    "top_k all": (1, 1, 10**6, 0), "top_k and top_p": (0.8, 0.6, 20, 0), "top_k, top_p 0": (2, 0, 30, 0),
    "min_p": (1, 1, 0, 0.02), "min_p 1": (1, 1, 0, 1), "all": (1.5, 0.9, 15, 0.01),
}  # fmt: skip
"""Temperature, top_p, top_k, min_p of rows that are sampled from parts."""


def rows_of(vocab: int) -> Any:
    """Logits [rows, vocab]: spread, peaked, tied, with -inf, infinities, NaN; equal maxima at the ends of chunks."""
    rng = np.random.default_rng(vocab)
    normal = rng.normal(0, 2, vocab)
    equal_maxima = normal.copy()
    equal_maxima[[vocab // 5, vocab // 2, vocab - 1]] = 11
    masked, only_last, one_part = normal.copy(), np.full(vocab, -np.inf), np.full(vocab, -np.inf)
    masked[rng.random(vocab) < 0.9] = -np.inf
    masked[: vocab // 3] = -np.inf  # whole chunks
    only_last[-1] = -3
    one_part[vocab // 2 :][:40] = rng.normal(0, 1, 40)[: vocab - vocab // 2]
    infinite, nan = normal.copy(), normal.copy()
    infinite[[vocab // 3, vocab - 2]] = np.inf
    nan[vocab - 5] = np.nan
    one_sided, ends = normal.copy(), np.full(vocab, -9.0)
    one_sided[: vocab // 6] += 30
    ends[::1024] = ends[1023::1024] = ends[-1] = 4
    zeros, tied = np.where(rng.random(vocab) < 0.5, 0.0, -0.0), np.round(normal)
    rows = [normal, normal * 5, tied, equal_maxima, masked, only_last, one_part, infinite, nan, zeros, one_sided, ends]
    return np.float32([*rows, np.full(vocab, -np.inf)])


def params_of(kinds: list[str], rows: int) -> dict[str, Any]:
    """Row i * K + k: logits i under kind k."""
    table, rng = np.array([KINDS[kind] for kind in kinds] * rows, np.float64), np.random.default_rng(7)
    position = rng.integers(0, 1 << 40, len(table))
    position[::9] = -1  # tails, and a word of seeds
    return {
        "row_temperature": table[:, 0].astype(np.float32), "row_top_p": table[:, 1].astype(np.float32),
        "row_top_k": table[:, 2].astype(np.int32), "row_min_p": table[:, 3].astype(np.float32),
        "row_seed": rng.integers(-(1 << 63), 1 << 63, len(table)), "position": position,
    }  # fmt: skip


def requests(kinds: list[str]) -> list[SamplingParams]:
    names = ("temperature", "top_p", "top_k", "min_p")
    return [SamplingParams.model_construct(**dict(zip(names, KINDS[kind], strict=True))) for kind in kinds]


def features_of(part: ShardedLogitsHead, kinds: list[str]) -> RowFeatures:
    work = part.features_of(requests(kinds))
    assert work is not None
    return work


def on_part(part: ShardedLogitsHead, logits: Any, kinds: list[str], params: dict[str, Any], **options: Any) -> Any:
    """The tokens, by one rank, from logits that are not aligned; nothing beside the tokens is written."""
    mine = logits[:, part.first : part.first + part.width]
    flat = torch.zeros(mine.numel() + 3, dtype=mine.dtype, device=mine.device)
    offset = part.width % 4
    flat[offset : offset + mine.numel()] = mine.flatten()
    held = torch.full((len(mine) + 2,), -7, device=mine.device)
    given = {name: torch.from_numpy(array).to(mine.device) for name, array in params.items()}
    mine = flat[offset : offset + mine.numel()].view(mine.shape)
    part.sample_target(mine, features_of(part, kinds), target_tokens=held[1:-1], **given, **options)
    assert held[[0, -1]].tolist() == [-7, -7]
    return held[1:-1].cpu().numpy()


def on_whole_rows(logits: Any, params: dict[str, Any], purpose: Purpose = Purpose.SAMPLE) -> Any:
    count = len(logits)
    tokens, scores, ranks = np.zeros(count, np.int64), np.zeros(count, np.float32), np.zeros(count, np.int64)
    sampling.sample_target(
        logits, **params, target_tokens=tokens, logprobs=scores, ranks=ranks, purpose=purpose,
        logprob_mode=LogprobMode.RAW,
    )  # fmt: skip
    return tokens
