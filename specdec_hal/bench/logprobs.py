"""Log-probabilities of accepted tokens, alone and with the top of their rows.

Figures of other implementations come from another run on an H200. Targets are those of contract version 2, which needs
one read of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from specdec_hal.bench.case import Case, OpCall, WarmCold, alone
from specdec_hal.bench.decode_step import BATCHES, VOCABULARIES
from specdec_hal.bench.logit_rows import LogitRows, check_some_rows

HEADLINE = LogitRows(256, 151_936)
"""The rows that the targets are for."""
_TARGETS = {("float32", 1): 44.0, ("float32", 21): 55.0, ("bfloat16", 1): 42.0}
_PEERS: Mapping[int, Mapping[str, WarmCold]] = {
    1: {"FastDeploy: copy": (836, None), "FastDeploy: log_softmax": (155, None)},
    21: {"FastDeploy: top-k": (589, None), "FlashInfer radix top-k": (126, None)},
}


def cases(quick: bool) -> Iterator[Case]:
    """The headline, then variations."""
    if quick:
        yield from (_logprobs(LogitRows(8, 32_000), n) for n in (1, 6))
        return
    yield from (_logprobs(HEADLINE, n, headline=True) for n in (1, 21))
    yield _logprobs(HEADLINE, 6)
    for dtype in ("bfloat16", "float16"):
        yield from (_logprobs(LogitRows(256, 151_936, dtype), n, headline=True) for n in (1, 21))
    yield from (_logprobs(LogitRows(256, 151_936, peaks=20), n) for n in (1, 21))
    for rows in BATCHES:
        if rows != HEADLINE.rows:
            yield from (_logprobs(LogitRows(rows, 151_936), n) for n in (1, 21))
    for vocabulary in VOCABULARIES[:2]:
        yield from (_logprobs(LogitRows(256, vocabulary), n) for n in (1, 21))
    yield _logprobs(HEADLINE, 21, accepted=64)


def _logprobs(size: LogitRows, n: int, *, accepted: int | None = None, headline: bool = False) -> Case:
    """`accepted`: number of rows with an accepted token; default: all."""
    count = size.rows if accepted is None else accepted

    def call(seed: int) -> OpCall:
        rng = np.random.default_rng([seed, 11])
        inputs = {
            "rows": rng.permutation(size.rows).astype(np.int32),
            "token_ids": rng.integers(0, size.vocabulary, size.rows),
            "cu_batch_token_offset": np.array([0, count], np.int32),
        }
        outputs = {
            "ids": np.zeros((size.rows, n), np.int64),
            "logprobs": np.zeros((size.rows, n), np.float32),
            "ranks": np.zeros(size.rows, np.int64),
        }
        return OpCall("token_logprobs", {"logits": size.logits(seed)} | inputs | outputs)

    label = f"token_logprobs, N {n}, {size}" + ("" if accepted is None else f", {accepted} accepted")
    known: dict[str, Any] = {}
    if headline:
        peers = _PEERS.get(n, {}) if size == HEADLINE else {}
        known = {"target": (_TARGETS.get((size.dtype, n)), None), "peers": peers}
    check = check_some_rows(("rows", "token_ids", "ids", "logprobs", "ranks")) if accepted is None else None
    moved = size.bytes * count // size.rows
    params = {**size.params, "N": n} | ({} if accepted is None else {"accepted": accepted})
    return Case(
        label, f"token_logprobs N {n}", alone(call), moved, params=params, checked=check is None, check=check, **known
    )
