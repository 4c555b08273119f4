"""Progress bars on stderr, where it is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any


@contextmanager
def progress_bar(
    what: str, total: int | None, unit: str, *, visible: bool = True, transient: bool = True, **fields: Any
) -> Iterator[Callable[..., None]]:
    """A bar; yields `rich.progress.Progress.update` of its task. `unit` may name the task's `fields`."""
    if not visible or sys.stderr is None or not sys.stderr.isatty():
        yield lambda **changes: None
        return
    from rich.console import Console  # takes 0.2 s of a start
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=transient) as bar:
        yield partial(bar.update, bar.add_task(what, total=total, **fields))
