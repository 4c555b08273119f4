"""Host cost of `Drafter.propose` beyond the ops it launches, for histories of 200 tokens that grow by 3 a call.

``python benchmarks/facade.py --out benchmarks/results/cpu-facade.json``. Microseconds per call; the ops are timed in
the same calls and subtracted.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from record import write

import specdec_hal as sd
from specdec_hal.bench.timing import Figures

START, GROWTH, CALLS = 200, 3, 1000
TOKENS = np.random.default_rng(0).integers(0, 2000, (64, START + GROWTH * CALLS))
LISTS = TOKENS.tolist()
FORMS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "arrays by request id": lambda b, n: {"histories": [TOKENS[i, :n] for i in range(b)], "request_ids": range(b)},
    "lists by request id": lambda b, n: {"histories": [LISTS[i][:n] for i in range(b)], "request_ids": range(b)},
    "padded by request id": lambda b, n: {"histories": TOKENS[:b], "lengths": [n] * b, "request_ids": range(b)},
    "arrays": lambda b, n: {"histories": [TOKENS[i, :n] for i in range(b)]},
    "padded": lambda b, n: {"histories": TOKENS[:b], "lengths": [n] * b},
}


class OpClock:
    """Nanoseconds spent in the launches of a backend."""

    def __init__(self, backend: sd.Backend) -> None:
        self.spent = 0
        plan = backend.plan

        def timed(call: Any) -> Callable[[int], None]:
            launch = plan(call)

            def run(stream: int) -> None:
                start = time.perf_counter_ns()
                launch(stream)
                self.spent += time.perf_counter_ns() - start

            return run

        backend.plan = timed  # type: ignore[method-assign]


def cost(form: Callable[[int, int], dict[str, Any]], batch: int) -> dict[str, Any]:
    """Of one form of histories at one batch size."""
    backend = sd.get_backend("xpu_sim")
    clock = OpClock(backend)
    drafter = sd.Drafter(backend=backend, max_ngram_size=4)
    drafter.propose(np.zeros((batch, TOKENS.shape[1]), np.int64))  # buffers of their final size
    facade, ops = [], []
    for call in range(CALLS):
        arguments = form(batch, START + GROWTH * call)
        clock.spent = 0
        start = time.perf_counter_ns()
        drafter.propose(**arguments)
        total = time.perf_counter_ns() - start
        facade.append((total - clock.spent) / 1000)
        ops.append(clock.spent / 1000)
    return {"facade_us": Figures.of(facade).rounded(), "ops_us": Figures.of(ops).rounded()}


def main() -> None:
    """Every form at 1, 8 and 64 requests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    figures = {f"{name}, {batch}": cost(form, batch) for name, form in FORMS.items() for batch in (1, 8, 64)}
    write(figures, args.out)


if __name__ == "__main__":
    main()
