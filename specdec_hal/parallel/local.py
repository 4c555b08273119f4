"""What one rank computes between two exchanges, from its part of the logits and from what ranks have told.

Here by PyTorch's operators, on any device; :mod:`specdec_hal.parallel.kernels` does the same by kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from specdec_hal.backends.reference.primitives import CHUNK, MASS_ONE
from specdec_hal.ops import Purpose
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
from specdec_hal.parallel.work import Filters, RowParams, Work
from specdec_hal.tensors.group import Group

DIGIT_BITS = 4
"""Of the keys that a search for a cut goes through."""


class Draw(NamedTuple):
    """Of each row [R]: the place of its token in the row's order, and the total that it was drawn from."""

    place: Any
    total: Any

    def where(self, rows: Any, other: Draw) -> Draw:
        """This one in those rows, the other elsewhere."""
        return Draw(*map(partial(torch.where, rows), self, other))


class _Shares(NamedTuple):
    """S and W of chunks [R, C]: what they amount to is W times the sum of their elements' masses."""

    amounts: Any
    weights: Any


class Columns(NamedTuple):
    """This rank's part: tokens [start, start + span), in whole chunks; those from `vocab_size` on have no column."""

    start: int
    span: int
    vocab_size: int


class Asked(NamedTuple):
    """How rows are to be drawn."""

    params: RowParams
    filters: Filters
    purpose: Purpose


class Needed(NamedTuple):
    """What will be asked of rows: shares at their temperatures, shares at 1, what filters keep of chunks."""

    shares: bool = False
    raw: bool = False
    kept: bool = False


class LocalRows:
    """This rank's columns of some rows, float32, float16 or bfloat16 [R, width]. Methods are called in the order here.

    `asked`: None for rows whose log-probabilities alone are asked for.
    """

    def __init__(self, logits: Any, columns: Columns, asked: Asked | None = None) -> None:
        self._logits, self.columns, self._asked = logits, columns, asked
        self._shares: _Shares | None = None
        self._elements: Any = None

    def first(self, count: int, needed: Needed) -> Any:
        """The places of the first of the order [R, count], descending; NOWHERE beyond the part."""
        if count == 1:
            top = self._tops.amax(1)
            # Of equal values, argmax gives the first.
            chunk = (self._tops == top[:, None]).to(torch.int8).argmax(1)
            inside = (pick(self._chunks, chunk) == top[:, None]).to(torch.int8).argmax(1)
            return place(order_key(top), self.columns.start + chunk * CHUNK + inside)[:, None]
        span = self.columns.span
        return F.pad(self.places().topk(min(count, span)).values, (0, max(count - span, 0)), value=NOWHERE)

    def meet(self, lists: Any) -> None:
        """What all ranks have told first [N, R, X]: after this, :attr:`top` [R] is the rows' largest logits."""
        self.lists = lists
        key = key_at(lists[:, :, 0].amax(0))
        self.top = logit_at(lists[:, :, 0].amax(0))
        self.defined = (key != KEY_NAN) & (key != -KEY_INF)

    def shares(self) -> Any:
        """What this rank's chunks have of the rows' totals [R]."""
        self._shares = self._shares_at(self.inverse)
        return self._shares.amounts.sum(1)

    def raw_shares(self) -> Any:
        """The same at temperature 1."""
        return self._shares_at(torch.ones_like(self.top)).amounts.sum(1)

    def draw_listed(self, totals: Any) -> tuple[Draw, Any]:
        """Draw where top_k or top_p cuts within the candidates that ranks have told, and in which rows it does.

        `totals` [R]: of the rows by chunks, None if there is none for which top_k does not say it.
        """
        assert self._asked is not None
        params, filters, _ = self._asked
        places = self.lists.transpose(0, 1).flatten(1).sort(1, descending=True).values
        # No rank has another element above its last candidate.
        complete = (places >= self.lists[:, :, -1].amax(0)[:, None]).sum(1)
        masses = self.mass(logit_at(places))
        sums = masses.cumsum(1)
        last = (params.top_k.to(torch.int64) - 1).clamp(0, places.shape[1] - 1)
        counted = pick(sums, last)
        settled = ~filters.by_count | (params.top_k <= complete)
        total = counted if totals is None else torch.where(filters.by_count, counted, totals)
        reached = (sums < threshold(params.top_p, total)[:, None]).sum(1)
        end = torch.where(filters.by_mass, reached, torch.where(filters.by_count, last, places.shape[1]))
        settled &= end < complete
        settled = filters.cut & (settled | ~self.defined)  # without a distribution there is nothing to know
        kept = (torch.arange(places.shape[1], device=places.device) <= end[:, None]) & (masses >= self._least[:, None])
        masses = torch.where(kept, masses, 0)
        total = masses.sum(1)
        by_id = token_at(places).argsort(1)
        ends = masses.gather(1, by_id).cumsum(1)
        drawn = (ends <= mulhi64(self._random, total)[:, None]).sum(1).clamp(max=places.shape[1] - 1)
        return Draw(pick(places, pick(by_id, drawn)), total), settled

    def last_kept(self, group: Group, work: Work, totals: Any) -> Any:
        """The place of the last that top_k and top_p keep of this part [R], found by all ranks together.

        `totals` as in :meth:`draw_listed`. Of rows that nothing cuts: the last of all.
        """
        assert self._asked is not None
        params, filters, _ = self._asked
        ordered = (~self.places()).sort(1).values
        counts = torch.arange(ordered.shape[1] + 1, device=ordered.device).expand(len(ordered), -1)
        sums = F.pad(self.mass(logit_at(~ordered)).cumsum(1), (1, 0))
        kept = counts[:, -1]
        if work.by_count:
            top_k = params.top_k.to(torch.int64)
            first = self._search(group, ordered, counts, lambda all_: top_k, torch.ones_like)
            kept = torch.where(filters.by_count, first, kept)
            sums = torch.minimum(sums, pick(sums, kept)[:, None])
        if work.by_mass:

            def need_of(all_: Any) -> Any:
                of = all_ if totals is None else torch.where(filters.by_count, all_, totals)
                return threshold(params.top_p, of).clamp(min=1)

            first = self._search(group, ordered, sums, need_of, lambda key: self.mass(key_value(key.to(torch.int32))))
            kept = torch.where(filters.by_mass, first, kept)
        return ~pick(F.pad(ordered, (1, 0), value=NOWHERE), kept)

    def _search(
        self, group: Group, ordered: Any, sums: Any, need_of: Callable[[Any], Any], weigh: Callable[[Any], Any]
    ) -> Any:
        """How many of this rank's elements [R] are in the shortest beginning of the order that reaches what it has to.

        All of them if none does. `ordered` [R, span]: inverted places, ascending; `sums` [R, span + 1]: what the first
        of them weigh; `need_of`: what is to be reached [R], by what all elements of all ranks weigh [R]; `weigh`: what
        an element of a key [R] does. Digit by digit of the key that the beginning ends with: what the elements weigh
        whose keys begin with the digits so far, by the next digit.
        """
        digits = torch.arange((1 << DIGIT_BITS) - 1, -1, -1, device=sums.device)
        need = above = above_here = torch.zeros_like(sums[:, 0])
        key = torch.full_like(above, -(1 << 31))
        for shift in range(32 - DIGIT_BITS, -1, -DIGIT_BITS):
            least = (key[:, None] + (digits << shift)) << 32  # places of these keys and no token
            reach_here = sums.gather(1, torch.searchsorted(ordered, ~least, right=True))
            reach = group.gather(reach_here.diff(dim=1, prepend=above_here[:, None])).sum(0).cumsum(1) + above[:, None]
            if shift == 32 - DIGIT_BITS:
                need = need_of(reach[:, -1])
            need = torch.minimum(need, reach[:, -1])  # all there is
            digit = (reach < need[:, None]).sum(1)
            above, above_here = (
                pick(torch.cat([before[:, None], upto], 1), digit)
                for before, upto in ((above, reach), (above_here, reach_here))
            )
            key = key + ((len(digits) - 1 - digit) << shift)
        ends = torch.searchsorted(ordered, ~(torch.stack([key + 1, key], 1) << 32), right=True)
        larger, ties = ends[:, 0], ends[:, 1] - ends[:, 0]
        before = group.gather(ties)[: group.rank].sum(0)
        weight = weigh(key)
        # No search ends with an element without weight; rows that nobody asks about must not divide by it.
        wanted = torch.div(need - above + weight - 1, weight + (weight == 0), rounding_mode="floor")
        return larger + torch.minimum((wanted - before).clamp(min=0), ties)

    def keep(self, last: Any) -> Any:
        """What filters keep of this rank's part [R], of rows without any nobody knows what.

        `last` [R]: the place of the last that top_k and top_p keep here; None: nothing is cut.
        """
        assert self._asked is not None
        masses = self.mass(self._chunks).flatten(1)
        if last is not None:
            masses = torch.where(self.places() >= last[:, None], masses, 0)
        self._elements = torch.where(masses >= self._least[:, None], masses, 0).view_as(self._chunks)
        kept, shares = self._elements.sum(2), self._shares
        whole = torch.full_like(kept, MASS_ONE)
        if shares is None:
            self._shares = _Shares(kept, whole)
        else:
            filtered = ~self._asked.filters.unfiltered[:, None]
            self._shares = _Shares(*map(partial(torch.where, filtered), (kept, whole), shares))
        return kept.sum(1)

    def draw(self, sums_of_ranks: Any, rank: int) -> Any:
        """The place of each row's token [R], drawn by what the ranks' chunks amount to [N, R]; NOWHERE if not here."""
        assert self._asked is not None and self._shares is not None
        shares = self._shares
        rest = mulhi64(self._random, sums_of_ranks.sum(0)) - sums_of_ranks[:rank].sum(0)
        mine = (rest >= 0) & (rest < sums_of_ranks[rank])
        ends = shares.amounts.cumsum(1)
        chunk = (ends <= rest[:, None]).sum(1).clamp(max=ends.shape[1] - 1)
        rest = rest - pick(ends - shares.amounts, chunk)
        logits = pick(self._chunks, chunk)
        masses = exp2_mass(softmax_t(logits, pick(self._tops, chunk)[:, None], self.inverse[:, None]))
        if self._elements is not None:
            filtered = ~self._asked.filters.unfiltered[:, None]
            masses = torch.where(filtered, pick(self._elements, chunk), masses)
        reached = mass_product(masses.cumsum(1), pick(shares.weights, chunk)[:, None]) > rest[:, None]
        inside = (~reached).sum(1).clamp(max=CHUNK - 1)
        token = self.columns.start + chunk * CHUNK + inside
        return torch.where(mine, place(order_key(pick(logits, inside)), token), NOWHERE)

    def logarithms(self, totals: Any) -> Any:
        """ln of totals [R], as the contract has it."""
        return ln_ratio(totals)

    # ---- whenever the rows' largest logits are known

    @cached_property
    def inverse(self) -> Any:
        """1 / temperature [R], 1 of rows that are not drawn."""
        if self._asked is None:
            return torch.ones_like(self.top)
        temperature = self._asked.params.temperature
        ones = torch.ones_like(temperature)
        return torch.where(self._asked.filters.sampled, ones / temperature, ones)

    def mass(self, logits: Any) -> Any:
        """Masses of logits [R, ...], relative to the row's largest."""
        top, inverse = (x.view(-1, *[1] * (logits.dim() - 1)) for x in (self.top, self.inverse))
        return exp2_mass(softmax_t(logits, top, inverse))

    def places(self) -> Any:
        """Of all elements [R, span]."""
        start, span, _ = self.columns
        tokens = torch.arange(start, start + span, device=self._logits.device)
        return place(order_key(self._chunks.flatten(1)), tokens)

    # ---- the part in whole chunks, filled up with -inf

    @cached_property
    def _chunks(self) -> Any:
        """[R, C, 1024]."""
        padded = F.pad(self._logits.float(), (0, self.columns.span - self._logits.shape[1]), value=-torch.inf)
        return padded.reshape(len(padded), self.columns.span // CHUNK, CHUNK)

    @cached_property
    def _tops(self) -> Any:
        """Their largest logits [R, C]."""
        return self._chunks.amax(2)

    def _shares_at(self, inverse: Any) -> _Shares:
        masses = exp2_mass(softmax_t(self._chunks, self._tops[:, :, None], inverse[:, None, None])).sum(2)
        weights = exp2_mass(softmax_t(self._tops, self.top[:, None], inverse[:, None]))
        return _Shares(mass_product(masses, weights), weights)

    @cached_property
    def _least(self) -> Any:
        """What min_p asks an element to weigh."""
        assert self._asked is not None
        params = self._asked.params
        return threshold(params.min_p, torch.full_like(params.seed, MASS_ONE))

    @cached_property
    def _random(self) -> Any:
        """The 64 bits of each row."""
        assert self._asked is not None
        params, _, purpose = self._asked
        return philox_u64(params.seed, params.position, purpose)


def pick(tensor: Any, index: Any) -> Any:
    """``tensor[r, index[r]]`` of a tensor [R, X, ...]."""
    return tensor[torch.arange(len(tensor), device=tensor.device), index]
