"""Tables that fit the terminal without truncation."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_HEADER_LINES = 3
"""Most lines of a column's name while columns can be dropped."""
_BETWEEN, _EDGES = 3, 2
"""Characters between columns, and at both ends."""


@dataclass
class Rows:
    """A title, columns and rows of text. `spare`: numbers of the columns to drop on a narrow terminal, in order.

    In a terminal, columns are dropped until each cell fits on a line; if that is not enough, texts take several lines.
    Words, names and numbers are never split. A pipe or file gets every column, at full width or, if texts can be
    broken, in `widest` characters.
    """

    title: str
    columns: Sequence[str]
    spare: Sequence[int] = ()
    header: bool = True
    widest: int | None = None
    cells: list[tuple[str, ...]] = field(default_factory=list)
    styles: list[str | None] = field(default_factory=list)

    def add_row(self, *cells: str, style: str | None = None) -> None:
        """Add a row; missing cells are empty."""
        self.cells.append((*(cell.strip() for cell in cells), *[""] * (len(self.columns) - len(cells))))
        self.styles.append(style)

    def print(self, console: Console) -> None:
        """Print to stdout."""
        columns = list(range(len(self.columns)))
        widths = list(map(self._width, columns))
        terminal = console.width
        if console.is_terminal:
            columns, widths = self._fitted(terminal, self.spare)
        elif self.widest is not None:
            columns, widths = self._fitted(self.widest, ())
        console.width = max(terminal, _total(widths), len(self.title))
        console.print(self._table(columns, widths))
        console.width = terminal

    def _table(self, columns: Sequence[int], widths: Sequence[int]) -> Table:
        from rich import box
        from rich.table import Table

        table = Table(
            title=self.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False,
            show_header=self.header,
        )  # fmt: skip
        for column, width in zip(columns, widths, strict=True):
            table.add_column(self.columns[column], width=width, overflow="fold")
        for cells, style in zip(self.cells, self.styles, strict=True):
            table.add_row(*(cells[column] for column in columns), style=style)
        return table

    def _fitted(self, width: int, spare: Sequence[int]) -> tuple[list[int], list[int]]:
        """Columns, and how wide each is."""
        columns = list(range(len(self.columns)))
        empty = [column for column in columns if not any(self._texts(column))]
        for dropped in (None, *empty, *spare):
            columns = [column for column in columns if column != dropped]
            widths = self._shrunk(columns, width, 1)
            if _total(widths) <= width:
                return columns, widths
        widths = self._shrunk(columns, width, 2)
        return columns, widths if _total(widths) <= width else self._shrunk(columns, width, None)

    def _shrunk(self, columns: Sequence[int], width: int, lines: int | None) -> list[int]:
        """Widths at which no cell exceeds that many lines."""
        widths, least = ([one(column) for column in columns] for one in (self._width, partial(self._least, lines)))
        while _total(widths) > width and widths != least:
            at = max(range(len(widths)), key=lambda one: (widths[one] > least[one], widths[one]))
            widths[at] -= 1
        return widths

    def _texts(self, column: int) -> list[str]:
        return [cells[column] for cells in self.cells]

    def _header(self, column: int) -> str:
        return self.columns[column] if self.header else ""

    def _width(self, column: int) -> int:
        texts = (self._header(column), *self._texts(column))
        return max(len(line) for text in texts for line in text.split("\n"))

    def _least(self, lines: int | None, column: int) -> int:
        header = _narrowest(self._header(column), lines and _HEADER_LINES)
        return max(header, *(_narrowest(text, lines) for text in {"", *self._texts(column)}))


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _BETWEEN * (len(widths) - 1) + _EDGES


def _narrowest(text: str, lines: int | None) -> int:
    """The least width that breaks no word and needs at most that many lines."""
    width = max(map(len, text.split()), default=1)
    while lines is not None and width < len(text):
        if len(textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)) <= lines:
            break
        width += 1
    return width
