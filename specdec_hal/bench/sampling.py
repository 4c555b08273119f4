"""From logits to tokens: sampling, the distribution sampled from, candidates, penalties, masks.

Figures of other implementations come from another run on an H200. Targets are those of contract version 2, which needs
one read of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from specdec_hal.bench.case import Case, OpCall, WarmCold, alone
from specdec_hal.bench.decode_step import BATCHES, VOCABULARIES
from specdec_hal.bench.logit_rows import WIDTH, LogitRows, check_some_rows

HEADLINE = LogitRows(256, 151_936)
"""The rows that most targets are for."""
PEAKED = LogitRows(256, 151_936, peaks=20)
"""Like a language model's: few tokens hold most of the mass."""
_SETTINGS: Mapping[str, Mapping[str, float]] = {
    "argmax": {"temperature": 0},
    "no filter": {},
    "top-p 0.9": {"top_p": 0.9},
    "top-k 20, top-p 0.9": {"top_k": 20, "top_p": 0.9},
    "min-p 0.05": {"min_p": 0.05},
    "top-k 1,000, top-p 0.9": {"top_k": 1000, "top_p": 0.9},
}
TARGETS: Mapping[tuple[str, str], float] = {
    ("argmax", "256 x 151,936 float32, spread 2"): 40.5,
    ("no filter", "256 x 151,936 float32, spread 2"): 41,
    ("no filter", "256 x 151,936 bfloat16, spread 2"): 38,
    ("no filter, raw logprob", "256 x 151,936 float32, spread 2"): 43,
    ("no filter, raw logprob and rank", "256 x 151,936 float32, 20 peaks"): 50,
    ("no filter", "1 x 151,936 float32, spread 2"): 5.3,
    ("no filter", "4 x 151,936 float32, spread 2"): 5.5,
    ("no filter", "32 x 151,936 float32, spread 2"): 10.5,
    ("no filter", "1536 x 151,936 float32, spread 2"): 255,
    ("top-p 0.9", "256 x 151,936 float32, 20 peaks"): 60,
    ("top-p 0.9", "256 x 151,936 float32, spread 2"): 115,
    ("top-p 0.9", "256 x 32,000 bfloat16, 20 peaks"): 25,
    ("top-p 0.9", "256 x 128,256 bfloat16, 20 peaks"): 70,
    ("top-p 0.9", "1 x 32,000 float32, spread 2"): 14,
    ("top-k 20, top-p 0.9", "256 x 151,936 float32, spread 2"): 45.7,
}
"""Microseconds, warm, by setting and rows."""
PEERS: Mapping[tuple[str, str], Mapping[str, WarmCold]] = {
    ("argmax", str(HEADLINE)): {"torch argmax": (54, None)},
    ("no filter", str(HEADLINE)): {"FlashInfer": (108, None)},
    ("top-p 0.9", str(HEADLINE)): {"FlashInfer softmax + top_p": (252, None)},
    ("top-k 20, top-p 0.9", str(HEADLINE)): {"FlashInfer": (375, None)},
    ("no filter", "1536 x 151,936 float32, spread 2"): {"vLLM V2, logits to accepted tokens": (349, None)},
    ("top-p 0.9", "1 x 32,000 float32, spread 2"): {"FlashInfer": (20.2, 26.1)},
    ("top-p 0.9", "8 x 32,000 float32, spread 2"): {"FlashInfer": (21.3, None)},
    ("top-p 0.9", "32 x 32,000 float32, spread 2"): {"FlashInfer": (26.9, None)},
    ("top-p 0.9", "1 x 32,000 float32, 20 peaks"): {"FlashInfer": (None, 26.7)},
    ("top-p 0.9", "1 x 151,936 bfloat16, spread 2"): {"FlashInfer": (None, 50.5)},
    ("no filter", "1 x 151,936 float32, spread 2"): {"vLLM V2": (7.4, None)},
    ("no filter", "2 x 151,936 float32, spread 2"): {"vLLM V2": (8.5, None)},
    ("no filter", "4 x 151,936 float32, spread 2"): {"vLLM V2": (9.2, None)},
    ("no filter", "1 x 151,936 bfloat16, spread 2"): {"vLLM V2": (7.3, None)},
    ("no filter", "1 x 32,000 float32, spread 2"): {"vLLM V2": (6.9, None)},
}
"""Those of few rows are from an H100."""
_SECTOR = 32
"""The smallest transfer of a GPU's memory, in bytes."""
_ROW_PARAMS = ("row_temperature", "row_top_p", "row_top_k", "row_min_p", "position")


def cases(quick: bool) -> Iterator[Case]:
    """The headline of every setting, then variations."""
    if quick:
        small = LogitRows(8, 32_000)
        yield _sample(small, "top-p 0.9")
        yield _candidates(small, 5)
        yield _masked(small, 0.5)
        return
    for setting in _SETTINGS:
        yield _sample(HEADLINE, setting)
    yield _sample(HEADLINE, "no filter", logprobs=True)
    for rows in (HEADLINE, PEAKED):
        yield _sample(rows, "no filter", logprobs=True, ranks=True)
    yield _candidates(HEADLINE, 5, headline=True)
    yield _candidates(HEADLINE, 20)
    for rows in (HEADLINE, PEAKED):
        yield _probs(rows, "top-p 0.9")
    yield _penalties(HEADLINE, 1024)
    yield from (_masked(HEADLINE, share) for share in (0, 0.001, 0.5, 0.97))
    yield from _varied()


def _varied() -> Iterator[Case]:
    settings = ("argmax", "no filter", "top-p 0.9", "top-k 20, top-p 0.9")
    for dtype in ("bfloat16", "float16"):
        yield from (_sample(LogitRows(256, 151_936, dtype), setting) for setting in settings)
    for spread in (0.01, 0.5, 1.0, 3.0, 4.0, 5.0, 8.0):
        for dtype in ("float32", "bfloat16"):
            yield _sample(LogitRows(256, 151_936, dtype, spread), "top-p 0.9")
    yield from (_sample(PEAKED, setting) for setting in settings)
    for rows in (*BATCHES, 4, 1536):
        if rows != HEADLINE.rows:
            yield from (_sample(LogitRows(rows, 151_936), setting) for setting in settings[:3])
    yield _sample(LogitRows(256, 151_936, "bfloat16", peaks=PEAKED.peaks), "top-p 0.9")
    for vocabulary in (4096, *VOCABULARIES[:2], 262_144):
        for dtype in ("float32", "bfloat16"):
            yield _sample(LogitRows(256, vocabulary, dtype), "top-p 0.9")
            yield _sample(LogitRows(256, vocabulary, dtype, peaks=PEAKED.peaks), "top-p 0.9")
        yield _candidates(LogitRows(256, vocabulary), 5)
    for rows in (1, 8, 32):
        yield _sample(LogitRows(rows, 32_000), "top-p 0.9")
        yield _sample(LogitRows(rows, 32_000, peaks=PEAKED.peaks), "top-p 0.9")
    yield _sample(LogitRows(1, 32_000), "no filter")
    yield _sample(LogitRows(1, 151_936, "bfloat16"), "no filter")
    yield _sample(LogitRows(1, 151_936, "bfloat16"), "top-p 0.9")
    yield _sample(LogitRows(2, 151_936), "no filter")
    yield from (_masked(LogitRows(256, 151_936, dtype), 0.5) for dtype in ("bfloat16", "float16"))
    yield from (_masked(LogitRows(rows, 151_936), share) for rows in (1, 8, 48) for share in (0.001, 0.5, 0.97))


def _row_params(rows: int, setting: str, seed: int) -> dict[str, Any]:
    value = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0} | dict(_SETTINGS[setting])
    rng = np.random.default_rng([seed, 8])
    return {
        "row_temperature": np.full(rows, value["temperature"], np.float32),
        "row_top_p": np.full(rows, value["top_p"], np.float32),
        "row_top_k": np.full(rows, value["top_k"], np.int32),
        "row_min_p": np.full(rows, value["min_p"], np.float32),
        "position": rng.integers(0, 1 << 20, rows),
    }


def _sample(size: LogitRows, setting: str, *, logprobs: bool = False, ranks: bool = False) -> Case:
    """`logprobs`, `ranks`: request these outputs, of the unfiltered distribution."""
    asked: dict[str, Any] = {"logprobs": np.float32} if logprobs else {}
    if ranks:
        asked["ranks"] = np.int64

    def call(seed: int) -> OpCall:
        seeds = np.random.default_rng([seed, 9]).integers(0, 1 << 62, size.rows)
        inputs = _row_params(size.rows, setting, seed) | {"row_seed": seeds}
        outputs = {"target_tokens": np.zeros(size.rows, np.int64)}
        outputs |= {name: np.zeros(size.rows, dtype) for name, dtype in asked.items()}
        return OpCall("sample_target", {"logits": size.logits(seed)} | inputs | outputs)

    name = setting + (", raw logprob" if logprobs else "") + (" and rank" if ranks else "")
    known = (name, str(size))
    check = check_some_rows(("logits", *_ROW_PARAMS, "row_seed", "target_tokens", *asked))
    return Case(
        f"sample_target, {name}, {size}",
        f"sample {setting}",
        alone(call),
        size.bytes,
        target=(TARGETS.get(known), None),
        peers=PEERS.get(known, {}),
        params={**size.params, "outputs": ", ".join(["target_tokens", *asked])},
        checked=False,
        check=check,
    )


def _probs(size: LogitRows, setting: str) -> Case:
    def call(seed: int) -> OpCall:
        outputs = {"probs": np.zeros((size.rows, size.vocabulary), np.float32)}
        return OpCall(
            "processed_probs", {"logits": size.logits(seed)} | _row_params(size.rows, setting, seed) | outputs
        )

    moved = size.bytes + size.rows * size.vocabulary * 4
    check = check_some_rows(("logits", *_ROW_PARAMS, "probs"))
    label = f"processed_probs, {setting}, {size}"
    target = (150, None) if size in (HEADLINE, PEAKED) else (None, None)
    return Case(label, "processed_probs", alone(call), moved, target, params=size.params, checked=False, check=check)


def _candidates(size: LogitRows, count: int, *, headline: bool = False) -> Case:
    def call(seed: int) -> OpCall:
        inputs = {
            "probs": size.probabilities(seed),
            "top_p": np.full(size.rows, 0.9, np.float32),
            "batch_id_per_token_output": np.arange(size.rows, dtype=np.int32),
        }
        outputs = {
            "candidate_scores": np.zeros((size.rows, count), np.float32),
            "candidate_ids": np.zeros((size.rows, count), np.int64),
            "candidate_lens": np.zeros(size.rows, np.int32),
        }
        return OpCall("top_p_candidates", inputs | outputs)

    known: dict[str, Any] = {"target": (45, None), "peers": {"FastDeploy": (133, None)}} if headline else {}
    by_row = ("probs", "batch_id_per_token_output", "candidate_scores", "candidate_ids", "candidate_lens")
    label = f"top_p_candidates, C {count}, {size}"
    params = {**size.params, "C": count}
    check = check_some_rows(by_row)
    return Case(label, "top_p_candidates", alone(call), size.bytes, params=params, checked=False, check=check, **known)


def _penalties(size: LogitRows, history: int) -> Case:
    """One row per slot; moves the history and at most one logit per token of it."""

    def call(seed: int) -> OpCall:
        rng = np.random.default_rng([seed, 10])
        m = size.rows
        inputs = {
            "token_ids_all": rng.integers(0, size.vocabulary, (m, history)),
            "prompt_lens": np.full(m, history // 2),
            "step_idx": np.full(m, history // 2),
            "draft_tokens": rng.integers(0, size.vocabulary, (m, 1)),
            "cu_seqlens_q_output": np.arange(m + 1, dtype=np.int32),
            "batch_id_per_token_output": np.arange(m, dtype=np.int32),
            "repetition": np.full(m, 1.1, np.float32),
            "frequency": np.full(m, 0.1, np.float32),
            "presence": np.full(m, 0.1, np.float32),
            "bad_tokens": np.full((m, 1), -1),
            "end_tokens": np.array([2]),
            "min_dec_len": np.zeros(m, np.int64),
        }
        return OpCall("apply_penalties", {"logits": size.logits(seed)} | inputs)

    moved = size.rows * history * (8 + 2 * _SECTOR)  # a logit costs a sector each way
    label = f"apply_penalties, {history:,} tokens of history, {size}"
    return Case(label, "apply_penalties", alone(call), moved, params={**size.params, "history": history})


def _masked(size: LogitRows, allowed: float) -> Case:
    """A mask a row. Memory moves in sectors, which are read before they are written where not all of one is forbidden.

    `allowed`: share of tokens, 0 but for one where it is forced, about 0.001 where a key comes, 0.97 inside a string.
    """
    words = -(-size.vocabulary // 32)

    def call(seed: int) -> OpCall:
        bits = np.random.default_rng([seed, 11]).random((size.rows, 32 * words), np.float32) < allowed
        inputs = {
            "bitmask": np.packbits(bits, axis=1, bitorder="little").view("<i4").astype(np.int32),
            "bitmask_rows": np.arange(size.rows, dtype=np.int32),
        }
        return OpCall("apply_token_bitmask", {"logits": size.logits(seed)} | inputs)

    of_sector = _SECTOR // WIDTH[size.dtype]
    passes = 2 - 2 * allowed**of_sector - (1 - allowed) ** of_sector
    label = f"apply_token_bitmask, {allowed:g} allowed, {size}"
    return Case(
        label,
        "apply_token_bitmask",
        alone(call),
        int(size.bytes * passes) + size.rows * words * 4,
        params={**size.params, "allowed": allowed},
        checked=False,
        check=check_some_rows(("logits", "bitmask_rows")),
    )
