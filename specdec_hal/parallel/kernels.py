"""What one rank computes of some rows, by the kernels of :mod:`specdec_hal.ops.parts`: bits as in `local`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from specdec_hal.backends.reference.primitives import CHUNK
from specdec_hal.ops.parts import PART_OPS
from specdec_hal.parallel.local import DIGIT_BITS, Asked, Columns, Draw, LocalRows, Needed
from specdec_hal.parallel.work import Work
from specdec_hal.tensors.group import Group


class PartBackend(Protocol):
    """A backend that has these kernels."""

    def bind_part(self, op: str, **operands: Any) -> Callable[[], None]:
        """A call of an op of :data:`specdec_hal.ops.parts.PART_OPS`, checked; on the current stream."""


def kernels_of(backend: Any) -> PartBackend | None:
    """The backend, if it has them."""
    return backend if hasattr(backend, "bind_part") else None


class KernelRows(LocalRows):
    """See LocalRows. `logits` have at least one column."""

    def __init__(self, backend: PartBackend, logits: Any, columns: Columns, asked: Asked | None = None) -> None:
        super().__init__(logits.contiguous(), columns, asked)
        self._backend, self._rows = backend, len(logits)
        self._position = asked.params.position if asked is not None else self._zeros()
        self._tops_here: Any = None
        self._masses: Any = None
        self._raw_masses: Any = None
        self._amounts: Any = None
        self._settled: Any = None
        self._last: Any = None

    def first(self, count: int, needed: Needed) -> Any:
        """See LocalRows.first. Tops and masses of chunks come from the same read."""
        places = self._empty(count)
        tempered = needed.shares and self._asked is not None
        if any(needed):
            self._tops_here = self._empty(self._chunk_count, dtype=torch.float32)
            masses = self._empty(self._chunk_count)
            if tempered:
                self._masses = masses
            else:
                self._raw_masses = masses
            self._read(tempered, chunk_tops=self._tops_here, chunk_masses=masses, first=places)
            if tempered and needed.raw:
                self._raw_masses = self._empty(self._chunk_count)
                self._read(False, chunk_masses=self._raw_masses)
        else:
            self._read(False, first=places)
        return places

    def _read(self, tempered: bool, **outputs: Any) -> None:
        given = {"logits": self._logits, "position": self._position, "first_token": self.columns.start}
        if tempered:
            given["row_temperature"] = self._params("row_temperature")["row_temperature"]
        self._run("part_chunks", **given, **outputs)

    def shares(self) -> Any:
        """See LocalRows.shares."""
        sums, self._amounts = self._shares_of(self._masses, self._params("row_temperature"))
        return sums

    def raw_shares(self) -> Any:
        """See LocalRows.raw_shares."""
        return self._shares_of(self._raw_masses, {})[0]

    def _shares_of(self, masses: Any, temperature: dict[str, Any]) -> tuple[Any, Any]:
        sums, amounts = self._empty(), self._empty(self._chunk_count)
        found = {"chunk_masses": masses, "shares": amounts, "sums": sums}
        self._run("part_shares", position=self._position, **temperature, **self._met, **found)
        return sums, amounts

    def draw_listed(self, totals: Any) -> tuple[Draw, Any]:
        """See LocalRows.draw_listed."""
        assert self._asked is not None
        drawn, total, settled = self._empty(), self._empty(), self._empty(dtype=torch.bool)
        self._run(
            "part_listed",
            **self._params(*_FILTERED, "row_seed", "position"),
            first_of_ranks=self.lists,
            totals=totals,
            drawn=drawn,
            total=total,
            settled=settled,
            vocab_size=self.columns.vocab_size,
            purpose=self._asked.purpose,
        )
        self._settled = settled
        return Draw(drawn, total), settled

    def last_kept(self, group: Group, work: Work, totals: Any) -> Any:
        """See LocalRows.last_kept. Rows that candidates have settled are not searched."""
        last = self._cut(group, None, None, by_mass=0) if work.by_count else None
        return self._cut(group, totals, last, by_mass=1) if work.by_mass else last

    def _cut(self, group: Group, totals: Any, last: Any, by_mass: int) -> Any:
        shifts = range(32 - DIGIT_BITS, -DIGIT_BITS - 1, -DIGIT_BITS)
        histograms = self._zeros(len(shifts), 1 << DIGIT_BITS).view(len(shifts), self._rows, -1)
        given = {"logits": self._logits, **self._params(*_FILTERED, "position"), **self._met, **self._columns}
        given |= {"settled": self._settled, "by_mass": by_mass}
        lists = {"list": self._empty(_ROOM), "listed": self._zeros()}
        state, heard = None, None
        for shift, histogram in zip(shifts, histograms, strict=True):
            before, state = {"state_before": state, "histograms_of_ranks": heard}, self._empty(3)
            found = {"state": state, "histogram": histogram}
            self._run("part_search", **given, **lists, **before, **found, totals=totals, last_kept=last, shift=shift)
            heard = group.gather(histogram if shift >= 0 else histogram[:, 0].contiguous())
        kept = self._empty()
        found = {"state": state, "ties_of_ranks": heard, "last_kept": kept}
        self._run("part_cut", **given, **found, kept_before=last, rank=group.rank)
        return kept

    def keep(self, last: Any) -> Any:
        """See LocalRows.keep."""
        if self._amounts is None:
            self._amounts = self._zeros(self._chunk_count)
        self._last = last
        given = {"logits": self._logits, "last_kept": last, "shares": self._amounts}
        self._run("part_kept", **given, **self._params(*_FILTERED, "position"), **self._met, **self._columns)
        return self._amounts.sum(1)

    def draw(self, sums_of_ranks: Any, rank: int) -> Any:
        """See LocalRows.draw."""
        assert self._asked is not None
        drawn = self._empty()
        self._run(
            "part_draw",
            logits=self._logits,
            last_kept=self._last,
            shares=self._amounts,
            sums_of_ranks=sums_of_ranks.contiguous(),
            drawn=drawn,
            rank=rank,
            purpose=self._asked.purpose,
            **self._params(*_FILTERED, "row_seed", "position"),
            **self._met,
            **self._columns,
        )
        return drawn

    def logarithms(self, totals: Any) -> Any:
        """See LocalRows.logarithms."""
        found = self._empty(dtype=torch.float32)
        self._run("ln_totals", totals=totals.contiguous(), logarithms=found)
        return found

    # ---- operands

    @property
    def _met(self) -> dict[str, Any]:
        return {"chunk_tops": self._tops_here, "first_of_ranks": self.lists}

    @property
    def _columns(self) -> dict[str, Any]:
        return {"first_token": self.columns.start, "vocab_size": self.columns.vocab_size}

    def _params(self, *names: str) -> dict[str, Any]:
        assert self._asked is not None
        return {name: getattr(self._asked.params, name.removeprefix("row_")) for name in names}

    @property
    def _chunk_count(self) -> int:
        return -(-int(self._logits.shape[1]) // CHUNK)

    def _empty(self, *shape: int, dtype: Any = torch.int64) -> Any:
        return torch.empty(self._rows, *shape, dtype=dtype, device=self._logits.device)

    def _zeros(self, *shape: int) -> Any:
        return torch.zeros(self._rows, *shape, dtype=torch.int64, device=self._logits.device)

    def _run(self, op: str, **operands: Any) -> None:
        assert op in PART_OPS
        self._backend.bind_part(op, **operands)()


_ROOM = 4096
"""Elements of a part that a search for a cut lists."""
_FILTERED = ("row_temperature", "row_top_p", "row_top_k", "row_min_p")
