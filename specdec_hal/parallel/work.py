"""What the ranks exchange for rows of logits, by the rows' sampling parameters, which all ranks know."""

from __future__ import annotations

from typing import Any, NamedTuple

LISTED = 32
"""Candidates that each rank tells of a row that top_k or top_p cuts."""


class RowParams(NamedTuple):
    """Sampling parameters by row [R], as `sample_target` takes them."""

    temperature: Any
    top_p: Any
    top_k: Any
    min_p: Any
    seed: Any
    position: Any


class Filters(NamedTuple):
    """Which rows are drawn at all, and which filters they have: bool [R]. `listed`: top_k keeps at most LISTED."""

    sampled: Any
    by_count: Any
    by_mass: Any
    by_weight: Any
    listed: Any

    @classmethod
    def of(cls, params: RowParams, vocab_size: int) -> Filters:
        """Those that `sample_target` applies. Enqueues, and reads nothing."""
        sampled = (params.temperature > 0) & (params.position >= 0)
        by_count = sampled & (params.top_k > 0) & (params.top_k < vocab_size)
        by_weight = sampled & ~(params.min_p <= 0)  # NaN counts as 1
        return cls(sampled, by_count, sampled & (params.top_p < 1), by_weight, by_count & (params.top_k <= LISTED))

    @property
    def cut(self) -> Any:
        """By top_k or top_p."""
        return self.by_count | self.by_mass

    @property
    def light(self) -> Any:
        """By nothing but min_p."""
        return self.by_weight & ~self.cut

    @property
    def unfiltered(self) -> Any:
        """Sampled from all of the row."""
        return self.sampled & ~(self.cut | self.by_weight)


class Work(NamedTuple):
    """What is exchanged for the rows of a step; all ranks have to agree.

    `shares`: of chunks, for unfiltered rows and for top_p. `tempered`: some row has another temperature than 1.
    `listed`: candidates. `by_count`, `by_mass`: histograms for top_k and top_p. `light`: masses that min_p alone keeps.
    `drawn`: tokens that one rank alone can tell.
    """

    shares: bool
    tempered: bool
    listed: bool
    by_count: bool
    by_mass: bool
    light: bool
    drawn: bool

    @classmethod
    def of(cls, params: RowParams, vocab_size: int) -> Work:
        """What these rows need whatever their logits are. Reads the parameters."""
        rows = Filters.of(params, vocab_size)
        wanted = (
            rows.unfiltered | rows.by_mass & ~rows.by_count,
            rows.sampled & (params.temperature != 1),
            rows.cut,
            rows.by_count & ~rows.listed,
            rows.by_mass & ~rows.listed,
            rows.light,
            rows.sampled & ~rows.listed,
        )
        return cls(*(bool(some.any()) for some in wanted))

    def without(self, settled: Any, rows: Filters) -> Work:
        """What is left when candidates have settled some rows. Reads which."""
        by_count, by_mass = (bool((some & ~settled).any()) for some in (rows.by_count, rows.by_mass))
        alone = bool((rows.unfiltered | rows.light).any())
        return self._replace(by_count=by_count, by_mass=by_mass, drawn=alone or by_count or by_mass)
