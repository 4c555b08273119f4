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
top_k > 32 with top_p                  2,344: two such searches, and the mass that top_k keeps
min_p alone                            24: the first, the mass it keeps, the token
log-probability and rank of the token  8 to 16 more: the shares at temperature 1 unless known, a count
token_logprobs, N columns              8 * max(N - 1, 1) + 24
=====================================  =======================================================================

:class:`Work` says what is exchanged for all rows of a step together. Where the host may look at what was exchanged,
rows that candidates settle need no histograms; elsewhere nothing is read on the host, and a step can be captured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from specdec_hal.backends.reference.primitives import CHUNK, MASS_ONE
from specdec_hal.backends.reference.sampling import LOWEST
from specdec_hal.ops import LogprobMode, Purpose
from specdec_hal.parallel.group import Group
from specdec_hal.parallel.masses import (
    KEY_INF,
    KEY_NAN,
    NOWHERE,
    exp2_mass,
    key_at,
    key_value,
    ln_ratio,
    logit_at,
    mass_product,
    mulhi64,
    order_key,
    philox_u64,
    place,
    softmax_t,
    threshold,
    token_at,
)
from specdec_hal.parallel.weights import vocabulary_part
from specdec_hal.parallel.work import LISTED, Filters, RowParams, Work

_LOWEST = float(LOWEST)
_DIGIT = 4
_BUCKETS = 1 << _DIGIT


class _Draw(NamedTuple):
    """Of each row [R]: the place of its token in the row's order, and the total that it was drawn from."""

    place: Any
    total: Any

    def where(self, rows: Any, other: _Draw) -> _Draw:
        """This one in those rows, the other elsewhere."""
        return _Draw(*map(partial(torch.where, rows), self, other))


class _Shares(NamedTuple):
    """S and W of chunks [R, C]: what they amount to is W times the sum of their elements' masses."""

    amounts: Any
    weights: Any

    def where(self, rows: Any, other: _Shares) -> _Shares:
        """This one in those rows, the other elsewhere."""
        return _Shares(*map(partial(torch.where, rows), self, other))


@dataclass
class _Rows:
    """This rank's part of some rows, in whole chunks that are filled up with -inf.

    `chunks` [R, C, 1024]; `tops` [R, C], their largest logits; `start`, the token that they begin with.
    """

    chunks: Any
    tops: Any
    start: int

    def first(self, count: int) -> Any:
        """The places of the first of the order [R, count], descending; NOWHERE beyond the part."""
        span = self.chunks.shape[1] * CHUNK
        if count == 1:
            top = self.tops.amax(1)
            # Of equal values, argmax gives the first.
            chunk = (self.tops == top[:, None]).to(torch.int8).argmax(1)
            inside = (_pick(self.chunks, chunk) == top[:, None]).to(torch.int8).argmax(1)
            return place(order_key(top), self.start + chunk * CHUNK + inside)[:, None]
        return F.pad(self.places().topk(min(count, span)).values, (0, max(count - span, 0)), value=NOWHERE)

    def places(self) -> Any:
        """Of all elements [R, span]."""
        tokens = torch.arange(self.start, self.start + self.chunks.shape[1] * CHUNK, device=self.chunks.device)
        return place(order_key(self.chunks.flatten(1)), tokens)

    def shares(self, row_top: Any, inverse: Any) -> _Shares:
        """Of the row's total, at temperatures 1 / inverse [R]."""
        masses = exp2_mass(softmax_t(self.chunks, self.tops[:, :, None], inverse[:, None, None])).sum(2)
        weights = exp2_mass(softmax_t(self.tops, row_top[:, None], inverse[:, None]))
        return _Shares(mass_product(masses, weights), weights)


@dataclass
class _Wanted:
    """How rows [R] are to be drawn. `top`: their largest logit."""

    params: RowParams
    filters: Filters
    inverse: Any
    top: Any
    purpose: Purpose

    @cached_property
    def least(self) -> Any:
        """What min_p asks an element to weigh."""
        return threshold(self.params.min_p, torch.full_like(self.params.seed, MASS_ONE))

    @cached_property
    def random(self) -> Any:
        """The 64 bits of each row."""
        return philox_u64(self.params.seed, self.params.position, self.purpose)

    def mass(self, logits: Any) -> Any:
        """Masses of logits [R, ...], relative to the row's largest."""
        top, inverse = (x.view(-1, *[1] * (logits.dim() - 1)) for x in (self.top, self.inverse))
        return exp2_mass(softmax_t(logits, top, inverse))


class VocabularyPart:
    """One rank's part of the vocabulary, tokens [first, first + width), and ops over it.

    All ranks call the same methods in the same order. `logits` are this rank's columns, float32 [R, width]; everything
    else is the same on all ranks, and so is what comes out.
    """

    def __init__(self, group: Group, vocab_size: int) -> None:
        self.vocab_size, self._group = vocab_size, group
        self._span = vocabulary_part(vocab_size, group.size)
        self._start = group.rank * self._span
        self.first = min(self._start, vocab_size)
        self.width = min(self._start + self._span, vocab_size) - self.first

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
        rows, filters = self._rows(logits), Filters.of(params, self.vocab_size)
        ones = torch.ones_like(params.temperature)
        inverse = torch.where(filters.sampled, ones / params.temperature, ones)

        lists = self._gather(rows.first(LISTED if work.listed else 1))
        first = lists[:, :, 0].amax(0)
        top, defined = _top(first)
        whole = torch.full_like(first, MASS_ONE)
        wanted = _Wanted(params, filters, inverse, top, purpose)

        raw = logprobs is not None and logprob_mode is LogprobMode.RAW
        shares = rows.shares(top, inverse) if work.shares else None
        sums = [] if shares is None else [shares.amounts.sum(1)]
        if raw and (work.tempered or not sums):
            sums.append(rows.shares(top, ones).amounts.sum(1))
        by_rank = list(self._gather(torch.stack(sums, 1)).unbind(2)) if sums else []
        shares_of_ranks = None if shares is None else by_rank[0]

        drawn, settled = _Draw(first, whole), torch.zeros_like(defined)
        if work.listed:
            listed, settled = _draw_listed(lists, wanted, shares_of_ranks)
            drawn = listed.where(settled, drawn)
            if look:
                work = work.without(settled, filters)
        if work.drawn:
            finished = self._draw(rows, wanted, shares, shares_of_ranks, work)
            drawn = finished.where(filters.sampled & ~settled, drawn)

        used = params.position >= 0
        told = used & defined
        target_tokens.copy_(torch.where(told, token_at(drawn.place), -1))
        chosen = logit_at(drawn.place)
        if ranks is not None:
            ranks.copy_(torch.where(told, self._rank_of(logits, chosen), -1))
        if logprobs is not None:
            scale, total = (ones, by_rank[-1].sum(0)) if raw else (inverse, drawn.total)
            lowest = torch.where(used, _LOWEST, 0.0).to(torch.float32)
            logprobs.copy_(torch.where(told, _logprob(chosen, top, scale, total), lowest))

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
        everyone = self._gather(torch.cat([part.first(most), self._place_of(logits, token_ids)], 1))
        best = everyone[:, :, :most].transpose(0, 1).flatten(1).sort(1, descending=True).values[:, :most]
        own = everyone[:, :, most].amax(0)
        top, defined = _top(best[:, 0])
        chosen, ones = logit_at(own), torch.ones_like(top)
        counts = (logits >= chosen[:, None]).sum(1)
        total, counts = self._gather(torch.stack([part.shares(top, ones).amounts.sum(1), counts], 1)).sum(0).unbind(1)

        places = torch.cat([own[:, None], best], 1)[:, : ids.shape[1]]
        columns = _logprob(logit_at(places), top[:, None], ones[:, None], total[:, None])
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

    def _rows(self, logits: Any) -> _Rows:
        padded = F.pad(logits, (0, self._span - self.width), value=-torch.inf)
        chunks = padded.reshape(len(logits), self._span // CHUNK, CHUNK)
        return _Rows(chunks, chunks.amax(2), self._start)

    def _place_of(self, logits: Any, tokens: Any) -> Any:
        """The place of a token of each row [R, 1], NOWHERE on ranks that do not have it."""
        if not self.width:
            return torch.full_like(tokens, NOWHERE)[:, None]
        column = (tokens - self.first).clamp(0, self.width - 1)
        mine = tokens == column + self.first
        return torch.where(mine, place(order_key(_pick(logits, column)), tokens), NOWHERE)[:, None]

    # ---- draws

    def _draw(self, rows: _Rows, wanted: _Wanted, shares: _Shares | None, by_rank: Any, work: Work) -> _Draw:
        """Draw by what the chunks amount to: their shares, or in filtered rows what these keep of their masses.

        `by_rank` [N, R]: the ranks' shares; None where `shares` is.
        """
        filtered, elements = ~wanted.filters.unfiltered, None
        if work.by_count or work.by_mass or work.light:
            elements = self._kept(rows, wanted, by_rank, work)
            kept = _Shares(elements.sum(2), torch.full_like(elements[:, :, 0], MASS_ONE))
            kept_of_ranks = self._gather(kept.amounts.sum(1))
            shares = kept if shares is None else kept.where(filtered[:, None], shares)
            by_rank = kept_of_ranks if by_rank is None else torch.where(filtered, kept_of_ranks, by_rank)
        assert shares is not None
        total, before = by_rank.sum(0), by_rank[: self._group.rank].sum(0)
        rest = mulhi64(wanted.random, total) - before
        mine = (rest >= 0) & (rest < by_rank[self._group.rank])
        ends = shares.amounts.cumsum(1)
        chunk = (ends <= rest[:, None]).sum(1).clamp(max=ends.shape[1] - 1)
        rest = rest - _pick(ends - shares.amounts, chunk)
        logits = _pick(rows.chunks, chunk)
        masses = exp2_mass(softmax_t(logits, _pick(rows.tops, chunk)[:, None], wanted.inverse[:, None]))
        if elements is not None:
            masses = torch.where(filtered[:, None], _pick(elements, chunk), masses)
        reached = mass_product(masses.cumsum(1), _pick(shares.weights, chunk)[:, None]) > rest[:, None]
        inside = (~reached).sum(1).clamp(max=CHUNK - 1)
        token = rows.start + chunk * CHUNK + inside
        told = torch.where(mine, place(order_key(_pick(logits, inside)), token), NOWHERE)
        return _Draw(self._gather(told).amax(0), total)

    def _kept(self, rows: _Rows, wanted: _Wanted, shares_of_ranks: Any, work: Work) -> Any:
        """Masses [R, C, 1024] of what the filters keep, by histograms."""
        filters, params = wanted.filters, wanted.params
        masses, places = wanted.mass(rows.chunks).flatten(1), rows.places()
        if work.by_count or work.by_mass:
            ordered = (~places).sort(1).values
            counts = torch.arange(places.shape[1] + 1, device=places.device).expand(len(places), -1)
            sums = F.pad(wanted.mass(logit_at(~ordered)).cumsum(1), (1, 0))
            kept, total = counts[:, -1], None if shares_of_ranks is None else shares_of_ranks.sum(0)
            if work.by_count:
                first = self._search(ordered, counts, params.top_k.to(torch.int64), lambda logit: 1)
                kept = torch.where(filters.by_count, first, kept)
                sums = torch.minimum(sums, _pick(sums, kept)[:, None])
                if work.by_mass:
                    counted = self._gather(sums[:, -1]).sum(0)
                    total = counted if total is None else torch.where(filters.by_count, counted, total)
            if work.by_mass:
                first = self._search(ordered, sums, threshold(params.top_p, total).clamp(min=1), wanted.mass)
                kept = torch.where(filters.by_mass, first, kept)
            last = _pick(F.pad(ordered, (1, 0), value=NOWHERE), kept)
            masses = torch.where(~places <= last[:, None], masses, 0)
        return torch.where(masses >= wanted.least[:, None], masses, 0).view_as(rows.chunks)

    def _search(self, ordered: Any, sums: Any, need: Any, weigh: Callable[[Any], Any]) -> Any:
        """How many of this rank's elements [R] are in the shortest beginning of the order that reaches `need` [R].

        All of them if none does. `ordered` [R, span]: inverted places, ascending; `sums` [R, span + 1]: what the first
        of them weigh; `weigh`: what an element does, by its logit [R]. Digit by digit of the key that the beginning
        ends with: what the elements weigh whose keys are no smaller, by the next digit.
        """
        digits = torch.arange(_BUCKETS - 1, -1, -1, device=need.device)
        key, above = torch.full_like(need, -(1 << 31)), torch.zeros_like(need)
        for shift in range(32 - _DIGIT, -1, -_DIGIT):
            least = (key[:, None] + (digits << shift)) << 32  # places of these keys and no token
            reach = self._gather(sums.gather(1, torch.searchsorted(ordered, ~least, right=True))).sum(0)
            need = torch.minimum(need, reach[:, -1])  # all there is
            bucket = (reach < need[:, None]).sum(1)
            above = _pick(torch.cat([above[:, None], reach], 1), bucket)
            key = key + ((_BUCKETS - 1 - bucket) << shift)
        ends = torch.searchsorted(ordered, ~(torch.stack([key + 1, key], 1) << 32), right=True)
        larger, ties = ends[:, 0], ends[:, 1] - ends[:, 0]
        before = self._gather(ties)[: self._group.rank].sum(0)
        weight = weigh(key_value(key.to(torch.int32)))
        # No search ends with an element without weight; rows that nobody asks about must not divide by it.
        wanted = torch.div(need - above + weight - 1, weight + (weight == 0), rounding_mode="floor")
        return larger + torch.minimum((wanted - before).clamp(min=0), ties)


def _draw_listed(lists: Any, wanted: _Wanted, shares_of_ranks: Any) -> tuple[_Draw, Any]:
    """Draw where top_k or top_p cuts within the candidates [N, R, LISTED] of the ranks, and in which rows it does."""
    filters, params = wanted.filters, wanted.params
    places = lists.transpose(0, 1).flatten(1).sort(1, descending=True).values
    # No rank has another element above its last candidate.
    complete = (places >= lists[:, :, -1].amax(0)[:, None]).sum(1)
    masses = wanted.mass(logit_at(places))
    sums = masses.cumsum(1)
    last = (params.top_k.to(torch.int64) - 1).clamp(0, places.shape[1] - 1)
    counted = _pick(sums, last)
    settled = ~filters.by_count | (params.top_k <= complete)
    total = counted if shares_of_ranks is None else torch.where(filters.by_count, counted, shares_of_ranks.sum(0))
    reached = (sums < threshold(params.top_p, total)[:, None]).sum(1)
    end = torch.where(filters.by_mass, reached, torch.where(filters.by_count, last, places.shape[1]))
    settled &= filters.cut & (end < complete)
    kept = (torch.arange(places.shape[1], device=places.device) <= end[:, None]) & (masses >= wanted.least[:, None])
    masses = torch.where(kept, masses, 0)
    total = masses.sum(1)
    by_id = token_at(places).argsort(1)
    ends = masses.gather(1, by_id).cumsum(1)
    drawn = (ends <= mulhi64(wanted.random, total)[:, None]).sum(1).clamp(max=places.shape[1] - 1)
    return _Draw(_pick(places, _pick(by_id, drawn)), total), settled


def _pick(tensor: Any, index: Any) -> Any:
    """``tensor[r, index[r]]`` of a tensor [R, X, ...]."""
    return tensor[torch.arange(len(tensor), device=tensor.device), index]


def _top(first: Any) -> tuple[Any, Any]:
    """The largest logits by the places of the first of their rows' orders, and whether the rows have a distribution."""
    key = key_at(first)
    return logit_at(first), (key != KEY_NAN) & (key != -KEY_INF)


def _logprob(logits: Any, top: Any, inverse: Any, total: Any) -> Any:
    below = torch.where(logits == top, 0.0, (logits - top) * inverse)
    return (below - ln_ratio(total)).clamp(min=_LOWEST)
