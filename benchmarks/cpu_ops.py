"""Ops of the backends cpu and xpu_sim on one machine, in turns: the shortest run of each, and their ratio.

The cases are those of ``benchmarks/xpu_sim.py`` and of the suites of ``specdec-hal bench`` that move less than
`--most` bytes. Run: ``taskset -c 0 python benchmarks/cpu_ops.py --threads 1 --out benchmarks/results/NAME.json``
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from record import write
from xpu_sim import Inputs, decode_step
from xpu_sim import cases as cases_of_emulator

import specdec_hal as sd
from specdec_hal.bench import SUITES
from specdec_hal.bench.case import Case, Prepared
from specdec_hal.bench.runner import cases_of
from specdec_hal.ops.spec import Role
from specdec_hal.plugin.backend import Backend
from specdec_hal.tensors.device import get_device

Run = tuple[Callable[[], object], Callable[[], None]]
"""What is measured, and what puts its inputs back before."""
TURN = 3
"""Runs of one backend before it is the other's turn."""
SETTINGS: dict[str, tuple[float, float, int, float]] = {
    "greedy": (0, 1, 0, 0), "temperature 1": (1, 1, 0, 0), "top_p 0.9": (1, 0.9, 0, 0),
    "top_p 0.9, min_p 0.05": (1, 0.9, 0, 0.05), "top_k 50": (1, 1, 50, 0), "top_k 500": (1, 1, 500, 0),
    "top_k 2000": (1, 1, 2000, 0), "min_p 0.05": (1, 1, 0, 0.05),
    "temperature 0.7, top_k 50, top_p 0.9": (0.7, 0.9, 50, 0),
    "temperature 0.7, top_k 50, top_p 0.9, min_p 0.05": (0.7, 0.9, 50, 0.05),
}  # fmt: skip
"""Temperature, top_p, top_k and min_p of the table in docs/numbers/cpu.md."""


def run_of_op(backend: Backend, op: str, inputs: Inputs) -> Run:
    """One op over a copy of these inputs."""
    own = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in inputs.items()}
    plan = backend.bind(op, **own)
    names = [operand.name for operand in plan.call.op.operands if operand.role is Role.INOUT]
    saved = {name: own[name].copy() for name in names if own.get(name) is not None}

    def restore() -> None:
        for name, value in saved.items():
            np.copyto(own[name], value)

    return plan, restore


def run_of_case(backend: Backend, case: Case) -> Run:
    """A case of a suite."""
    prepared = Prepared(replace(case, checked=False, check=None), backend, get_device("cpu", "numpy"), 0)
    prepared.upload()
    return lambda: prepared.launch(0), prepared.restore


def rows_of_logits(rows: int, vocabulary: int, setting: tuple[float, float, int, float]) -> Inputs:
    """Inputs of `sample_target`: normally distributed logits."""
    temperature, top_p, top_k, min_p = setting
    return {
        "logits": np.random.default_rng(0).normal(size=(rows, vocabulary)).astype(np.float32),
        "row_temperature": np.full(rows, temperature, np.float32), "row_top_p": np.full(rows, top_p, np.float32),
        "row_top_k": np.full(rows, top_k, np.int32), "row_min_p": np.full(rows, min_p, np.float32),
        "row_seed": np.arange(rows), "position": np.arange(rows), "target_tokens": np.zeros(rows, np.int64),
    }  # fmt: skip


def cases(backend: Backend, most: float) -> Iterator[tuple[str, Callable[[Backend], Run]]]:
    """Names, and how a backend runs them."""
    for name, op, inputs, _ in cases_of_emulator():
        yield name, lambda on, op=op, inputs=inputs: run_of_op(on, op, inputs)  # type: ignore[misc]
    for op, inputs in decode_step(backend):
        yield f"{op}, B=8 K=5 V=4096", lambda on, op=op, inputs=inputs: run_of_op(on, op, inputs)  # type: ignore[misc]
    for rows, vocabulary in ((48, 4096), (8, 151_936)):
        for name, setting in SETTINGS.items():
            inputs = rows_of_logits(rows, vocabulary, setting)
            yield (
                f"sample_target, {name}, {rows} x {vocabulary:,}",
                lambda on, inputs=inputs: run_of_op(on, "sample_target", inputs),  # type: ignore[misc]
            )
    for suite in SUITES:
        for case in cases_of(suite):
            if case.moved <= most:
                yield f"{suite}: {case.label}", lambda on, case=case: run_of_case(on, case)  # type: ignore[misc]


def shortest(runs: list[Run], seconds: float) -> list[float]:
    """The shortest run of each in us."""
    least = [float("inf")] * len(runs)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or max(least) == float("inf"):
        for i, (run, restore) in enumerate(runs):
            for _ in range(TURN):
                restore()
                start = time.perf_counter_ns()
                run()
                least[i] = min(least[i], (time.perf_counter_ns() - start) / 1000)
    return least


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1, help="of cpu; the emulator has one")
    parser.add_argument("--seconds", type=float, default=0.5, help="time for each case")
    parser.add_argument("--most", type=float, default=4e7, help="bytes that a case may move")
    parser.add_argument("--only", default="", help="a part of the names of cases")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    backends = [sd.get_backend("cpu", options={"threads": args.threads}), sd.get_backend("xpu_sim")]
    figures: dict[str, Any] = {}
    for name, run_on in cases(backends[1], args.most):
        if args.only in name:
            cpu, emulator = shortest([run_on(backend) for backend in backends], args.seconds)
            figures[name] = {
                "cpu_us": round(cpu, 2),
                "xpu_sim_us": round(emulator, 2),
                "ratio": round(emulator / cpu, 2),
            }
    write(figures, args.out)


if __name__ == "__main__":
    main()
