"""`sample_target` and `token_logprobs` over rows of logits of which each rank has a part: the bits of whole rows.

A rank tells the others what it found in its part, as integers that combine exactly: the first of the row's order, the
sum of its chunks' shares, its first candidates, histograms of keys. From these all ranks compute the same. Only the
token that a draw falls on inside a rank's part is known to that rank alone, which tells it. Bytes that a rank sends
for a row:

=====================================  =======================================================================
greedy                                 8: the first of its order
unfiltered                             24: also its shares, the token
top_k <= 32, whatever else             256: its first 32
top_p, if 32 of each rank settle it    264: also its shares
top_p else                             1,312: also 8 histograms of 16 masses, ties, the mass it keeps, the token
top_k > 32                             1,304: the same without shares; 256 if 32 of each rank settle it
top_k > 32 with top_p                  2,336: two such searches
min_p alone                            24: the first, the mass it keeps, the token
log-probability and rank of the token  8 to 16 more: the shares at temperature 1 unless known, a count
token_logprobs, N columns              8 * max(N - 1, 1) + 24
=====================================  =======================================================================

:class:`Work` says what is exchanged for all rows of a step together. Where the host may look at what was exchanged,
rows that candidates settle need no histograms; elsewhere nothing is read on the host, and a step can be captured.
What a rank computes between exchanges is in :mod:`local`, and on GPUs in :mod:`kernels`.
"""

from __future__ import annotations

from typing import Any

import torch

from specdec_hal.backends.reference.primitives import MASS_ONE
from specdec_hal.backends.reference.sampling import LOWEST
from specdec_hal.models.tp_weights import vocabulary_part
from specdec_hal.ops import LogprobMode, Purpose
from specdec_hal.parallel.kernels import KernelRows, PartBackend
from specdec_hal.parallel.local import Asked, Columns, Draw, LocalRows, Needed, pick
from specdec_hal.parallel.masses import (
    NOWHERE,
    logit_at,
    order_key,
    place,
    token_at,
)
from specdec_hal.parallel.work import LISTED, Filters, RowParams, Work
from specdec_hal.tensors.group import Group

_LOWEST = float(LOWEST)


class VocabularyPart:
    """One rank's part of the vocabulary, tokens [first, first + width), and ops over it.

    All ranks call the same methods in the same order. `logits` are this rank's columns, float32, float16 or bfloat16
    [R, width]; everything else is the same on all ranks, and so is what comes out. `kernels`: a backend that has them,
    None: operators of PyTorch.
    """

    def __init__(self, group: Group, vocab_size: int, kernels: PartBackend | None = None) -> None:
        self.vocab_size, self._group = vocab_size, group
        span = vocabulary_part(vocab_size, group.size)
        self._columns = Columns(group.rank * span, span, vocab_size)
        self.first = min(self._columns.start, vocab_size)
        self.width = min(self._columns.start + span, vocab_size) - self.first
        self._kernels = kernels if self.width else None

    def sample_target(
        self,
        logits: Any,
        params: RowParams,
        target_tokens: Any,
        logprobs: Any = None,
        ranks: Any = None,
        *,
        purpose: Purpose = Purpose.SAMPLE,
        logprob_mode: LogprobMode = LogprobMode.RAW,
        work: Work | None = None,
    ) -> None:
        """See the op. `work`: what is exchanged; None: what turns out to be needed, for which the host reads values."""
        if not len(logits):
            return
        look = work is None
        work = Work.of(params, self.vocab_size) if work is None else work
        filters = Filters.of(params, self.vocab_size)
        rows = self._rows(logits, Asked(params, filters, purpose))
        raw = logprobs is not None and logprob_mode is LogprobMode.RAW
        kept = work.by_count or work.by_mass or work.light
        needed = Needed(work.shares, raw and (work.tempered or not work.shares), kept)

        lists = self._gather(rows.first(LISTED if work.listed else 1, needed))
        rows.meet(lists)
        first = lists[:, :, 0].amax(0)
        sums = ([rows.shares()] if needed.shares else []) + ([rows.raw_shares()] if needed.raw else [])
        by_rank = list(self._gather(torch.stack(sums, 1)).unbind(2)) if sums else []
        shares_of_ranks = by_rank[0] if needed.shares else None

        drawn, settled = Draw(first, torch.full_like(first, MASS_ONE)), torch.zeros_like(rows.defined)
        if work.listed:
            listed, settled = rows.draw_listed(None if shares_of_ranks is None else shares_of_ranks.sum(0))
            drawn = listed.where(settled, drawn)
            if look:
                work = work.without(settled, filters)
        if work.drawn:
            finished = self._draw(rows, filters, shares_of_ranks, work)
            drawn = finished.where(filters.sampled & ~settled, drawn)

        used = params.position >= 0
        told = used & rows.defined
        target_tokens.copy_(torch.where(told, token_at(drawn.place), -1))
        chosen = logit_at(drawn.place)
        if ranks is not None:
            ranks.copy_(torch.where(told, self._rank_of(logits, chosen), -1))
        if logprobs is not None:
            scale, total = (torch.ones_like(rows.top), by_rank[-1].sum(0)) if raw else (rows.inverse, drawn.total)
            lowest = torch.where(used, _LOWEST, 0.0).to(torch.float32)
            logprobs.copy_(torch.where(told, _logprob(chosen, rows.top, scale, rows.logarithms(total)), lowest))

    def token_logprobs(
        self,
        logits: Any,
        rows: Any,
        token_ids: Any,
        cu_batch_token_offset: Any,
        ids: Any,
        logprobs: Any,
        ranks: Any,
    ) -> None:
        """See the op."""
        count, most = len(token_ids), max(ids.shape[1] - 1, 1)
        if not count or not len(logits):
            ids.fill_(-1), logprobs.fill_(0), ranks.fill_(-1)
            return
        accepted = cu_batch_token_offset[-1]
        told = torch.arange(count, device=logits.device) < accepted
        told &= (rows >= 0) & (rows < len(logits)) & (token_ids >= 0) & (token_ids < self.vocab_size)
        logits = logits[rows.clamp(0, len(logits) - 1)]
        part = self._rows(logits)
        everyone = self._gather(torch.cat([part.first(most, Needed(raw=True)), self._place_of(logits, token_ids)], 1))
        part.meet(everyone)
        best = everyone[:, :, :most].transpose(0, 1).flatten(1).sort(1, descending=True).values[:, :most]
        own = everyone[:, :, most].amax(0)
        defined, chosen, ones = part.defined, logit_at(own), torch.ones_like(part.top)
        counts = (logits >= chosen[:, None]).sum(1)
        total, counts = self._gather(torch.stack([part.raw_shares(), counts], 1)).sum(0).unbind(1)

        places = torch.cat([own[:, None], best], 1)[:, : ids.shape[1]]
        columns = _logprob(logit_at(places), part.top[:, None], ones[:, None], part.logarithms(total)[:, None])
        columns = torch.where(defined[:, None], columns, _LOWEST)
        tokens = torch.where(defined[:, None], token_at(places), -1)
        tokens[:, 0] = token_ids
        ids.copy_(torch.where(told[:, None], tokens, -1))
        logprobs.copy_(torch.where(told[:, None], columns, 0.0))
        ranks.copy_(torch.where(told & defined, counts, -1))

    # ---- what ranks tell each other

    def _gather(self, tensor: Any) -> Any:
        """Of all ranks [N, ...]."""
        return self._group.gather(tensor)

    def _rank_of(self, logits: Any, chosen: Any) -> Any:
        return self._gather((logits >= chosen[:, None]).sum(1)).sum(0)

    def _rows(self, logits: Any, asked: Asked | None = None) -> LocalRows:
        if self._kernels is None:
            return LocalRows(logits, self._columns, asked)
        return KernelRows(self._kernels, logits, self._columns, asked)

    def _place_of(self, logits: Any, tokens: Any) -> Any:
        """The place of a token of each row [R, 1], NOWHERE on ranks that do not have it."""
        if not self.width:
            return torch.full_like(tokens, NOWHERE)[:, None]
        column = (tokens - self.first).clamp(0, self.width - 1)
        mine = tokens == column + self.first
        return torch.where(mine, place(order_key(pick(logits, column).float()), tokens), NOWHERE)[:, None]

    # ---- draws

    def _draw(self, rows: LocalRows, filters: Filters, by_rank: Any, work: Work) -> Draw:
        """Draw by what the chunks amount to: their shares, or in filtered rows what these keep of their masses.

        `by_rank` [N, R]: the ranks' shares; None where there are none.
        """
        if work.by_count or work.by_mass or work.light:
            totals = None if by_rank is None else by_rank.sum(0)
            last = rows.last_kept(self._group, work, totals) if work.by_count or work.by_mass else None
            kept = self._gather(rows.keep(last))
            by_rank = kept if by_rank is None else torch.where(filters.unfiltered, by_rank, kept)
        return Draw(self._gather(rows.draw(by_rank, self._group.rank)).amax(0), by_rank.sum(0))


def _logprob(logits: Any, top: Any, inverse: Any, logarithm: Any) -> Any:
    below = torch.where(logits == top, 0.0, (logits - top) * inverse)
    return (below - logarithm).clamp(min=_LOWEST)
