"""Benchmarks that run as several ranks, each a process."""

from __future__ import annotations

import json
import multiprocessing
import tempfile
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any


def first_of(size: int, work: Callable[..., None], *args: Any) -> Any:
    """What the first of `size` ranks has found.

    Each runs ``work(rank, *args, folder, result)``: they meet in `folder`, and the first writes JSON to `result`.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result = folder / "figures.json"
        ranks = [context.Process(target=work, args=(rank, *args, folder, result)) for rank in range(size)]
        for process in ranks:
            process.start()
        while running := [process.sentinel for process in ranks if process.exitcode is None]:
            wait(running)
            failed = [rank for rank, process in enumerate(ranks) if process.exitcode]
            if failed:  # the others would wait for it
                for process in ranks:
                    process.kill()
                break
        if failed:
            raise SystemExit(f"ranks {failed} of {size} failed; what they said stands above")
        return json.loads(result.read_text())
