"""`sample_target` over ranks with parts of each row's logits, bit for bit equal to whole rows.

Ranks exchange the results of their parts as integers that combine exactly, and all compute the same from them. Only a
token drawn inside a rank's part must be sent by that rank. Bytes that a rank sends per row:

==========================  ====  =============================================================
greedy                         8  the first of its order
unfiltered, or min_p alone    24  also the mass that its chunks have in the draw, and the token
top_k up to 32                256  its first 32 tokens, from which every rank draws
==========================  ====  =============================================================

The host reads no values, so a step can be captured. The kernels are those of :mod:`specdec_hal.ops.parts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from specdec_hal.backends.reference.primitives import CHUNK, vocabulary_part
from specdec_hal.ops import Purpose
from specdec_hal.request import SamplingParams
from specdec_hal.tensors.group import Group

LISTED = 32
"""Candidates sent per rank and row with top_k."""
LEAST_ROWS = 64
"""Steps of fewer rows gather their logits: at one row that takes a quarter to half of the time."""

_NOWHERE = -(1 << 63)
_LOW32 = 0xFFFFFFFF
_KEY_INF, _KEY_NAN = 0x7F800000, 0x7FFFFFFF


class PartBackend(Protocol):
    """A backend with these kernels."""

    def bind_part(self, op: str, **operands: Any) -> Callable[[], None]:
        """A call of an op of :data:`specdec_hal.ops.parts.PART_OPS`, checked; on the current stream."""


class PartModel(Protocol):
    """A model over device tensors whose head is divided."""

    def compute_logits_part_device(self, hidden: Any, out: Any, num_rows: Any | None = None) -> None:
        """This rank's columns of `compute_logits_device`."""


class RowFeatures(NamedTuple):
    """The features of a step's rows: candidates for top_k, draws by chunks, and min_p."""

    listed: bool = False
    drawn: bool = False
    kept: bool = False


class ShardedLogitsHead:
    """One rank's part of the vocabulary, tokens [first, first + width). All ranks make the same calls in one order."""

    def __init__(
        self, group: Group, vocab_size: int, kernels: PartBackend, model: PartModel, least_rows: int = LEAST_ROWS
    ) -> None:
        self.vocab_size, self.least_rows, self._group, self._kernels = vocab_size, least_rows, group, kernels
        span = vocabulary_part(vocab_size, group.size)
        self.first = group.rank * span
        self.width = min(span, vocab_size - self.first)
        self.compute_device = model.compute_logits_part_device

    @classmethod
    def of(cls, group: Group, backend: Any, model: Any) -> ShardedLogitsHead | None:
        """None if logits must be gathered: without kernels, or if a rank would have no column."""
        vocab_size = model.config.vocab_size
        alone = (group.size - 1) * vocabulary_part(vocab_size, group.size) >= vocab_size
        able = hasattr(backend, "bind_part") and hasattr(model, "compute_logits_part_device") and not alone
        return cls(group, vocab_size, backend, model) if able else None

    def features_of(self, requests: Iterable[SamplingParams]) -> RowFeatures | None:
        """The features of a step of these requests; None if it needs whole rows."""
        kinds = {(one.temperature, one.top_p, one.top_k, one.min_p) for one in requests}
        each = [_features_of(self.vocab_size, *kind) for kind in kinds]
        known = [features for features in each if features is not None]
        return RowFeatures(*map(any, zip(RowFeatures(), *known, strict=True))) if len(known) == len(each) else None

    def sample_target(
        self,
        logits: Any,
        features: RowFeatures,
        *,
        target_tokens: Any,
        position: Any,
        row_seed: Any,
        purpose: Purpose = Purpose.SAMPLE,
        **filters: Any,
    ) -> None:
        """See the op. `logits`: this rank's columns [R, width]; other arguments are equal on all ranks."""

        def empty(*shape: int, dtype: Any = torch.int64) -> Any:
            return torch.empty(len(logits), *shape, dtype=dtype, device=logits.device)

        drawing = {**filters, "row_seed": row_seed, "purpose": purpose}
        rows, part = {"logits": logits, "position": position}, {"first_token": self.first}
        found: dict[str, Any] = {"first": empty(LISTED if features.listed else 1)}
        if features.drawn:
            chunks = -(-self.width // CHUNK)
            found |= {"chunk_tops": empty(chunks, dtype=torch.float32), "chunk_masses": empty(chunks)}
        self._run("part_chunks", **rows, **part, row_temperature=filters["row_temperature"], **found)
        lists = self._group.gather(found["first"])
        first = sort_key = lists[:, :, 0].amax(0)

        whole = {"first_of_ranks": lists, "vocab_size": self.vocab_size}
        if features.listed:
            drawn = empty()
            self._run("part_listed", position=position, **drawing, **whole, drawn=drawn)
            sort_key = torch.where(drawn > _NOWHERE, drawn, sort_key)
        if features.drawn:
            tops, shares, sums, drawn = {"chunk_tops": found["chunk_tops"]}, empty(chunks), empty(), empty()
            self._run(
                "part_shares",
                position=position,
                row_temperature=filters["row_temperature"],
                chunk_masses=found["chunk_masses"],
                first_of_ranks=lists,
                **tops,
                shares=shares,
                sums=sums,
            )
            if features.kept:
                self._run("part_kept", **rows, **filters, **tops, **whole, shares=shares)
                sums = shares.sum(1)
            total = {"shares": shares, "sums_of_ranks": self._group.gather(sums), "rank": self._group.rank}
            self._run("part_draw", **rows, **drawing, **part, **tops, **whole, **total, drawn=drawn)
            drawn = self._group.gather(drawn).amax(0)
            sort_key = torch.where(drawn > _NOWHERE, drawn, sort_key)

        key = first >> 32
        defined = (key > -_KEY_INF) & (key < _KEY_NAN)  # not of a tail, of NaN, or of nothing but -inf
        target_tokens.copy_(torch.where(defined, _LOW32 - (sort_key & _LOW32), -1))

    def _run(self, op: str, **operands: Any) -> None:
        self._kernels.bind_part(op, **operands)()


@lru_cache(4096)
def _features_of(vocab_size: int, temperature: float, top_p: float, top_k: int, min_p: float) -> RowFeatures | None:
    """The features of a row with these parameters."""
    if not np.float32(temperature) > 0:
        return RowFeatures()
    if 0 < top_k < vocab_size:
        return RowFeatures(listed=True) if top_k <= LISTED else None
    return None if np.float32(top_p) < 1 else RowFeatures(drawn=True, kept=bool(np.float32(min_p) > 0))
