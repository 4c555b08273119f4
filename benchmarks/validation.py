"""Host cost of checking a call: unbound, per framework, and of a bound call over its bare launch.

Run: ``python benchmarks/validation.py --out benchmarks/results/NAME.json``. Times are in microseconds. The floor is an
empty Python call measured in the same run.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from time import perf_counter
from typing import Any

import numpy as np
from record import write

from specdec_hal.conformance.inputs.generate import generate
from specdec_hal.ops import OPS
from specdec_hal.ops.validate import Call, check_call
from specdec_hal.plugin.backend import Backend, Capability, Launch

OPS_MEASURED = ("apply_penalties", "update_model_status", "verify_draft_tokens")  # 13, 14 and 16 tensors
SIZES = {"M": 8, "B": 8, "S": 6, "L": 64, "V": 64, "E": 2, "W": 2}
FROM_NUMPY: dict[str, Callable[[Any, Any], Any]] = {
    "numpy": lambda module, array: array,
    "torch": lambda module, array: module.from_numpy(array),
    "paddle": lambda module, array: module.to_tensor(array),
}


class Nothing(Backend):
    """Launches nothing: what remains is the cost of calling."""

    name = "nothing"
    capabilities = dict.fromkeys(OPS, Capability())

    def plan(self, call: Call) -> Launch:
        """A launch that does nothing."""
        return lambda stream: None


def sample(call: Callable[[], Any], runs: int, calls: int) -> list[float]:
    """Microseconds a call, once a run."""
    times = []
    for _ in range(runs):
        start = perf_counter()
        for _ in range(calls):
            call()
        times.append((perf_counter() - start) / calls * 1e6)
    return times


def row(times: list[float]) -> dict[str, float]:
    """Median, minimum and deciles, rounded to a nanosecond."""
    deciles = quantiles(times, n=10)
    return {
        "median": round(deciles[4], 3),
        "min": round(min(times), 3),
        "p10": round(deciles[0], 3),
        "p90": round(deciles[8], 3),
    }


def tensors_of(framework: str, op: str) -> dict[str, Any]:
    """A valid call of `op` with the framework's tensors."""
    module = importlib.import_module(framework)
    fixed = {"strategy": "TARGET_MATCH"} if op == "verify_draft_tokens" else {}
    call = generate(op, 1, dtype="float32", **SIZES, **fixed)
    convert = FROM_NUMPY[framework]
    return {name: convert(module, value) if isinstance(value, np.ndarray) else value for name, value in call.items()}


def measure(runs: int, calls: int) -> list[dict[str, Any]]:
    """One row per framework and op, then the bound call in turns with its launch alone."""
    rows: list[dict[str, Any]] = []
    backend = Nothing()
    for framework in FROM_NUMPY:
        if importlib.util.find_spec(framework) is None:
            rows.append({"framework": framework, "absent": True})
            continue
        for op in OPS_MEASURED:
            arguments, spec = tensors_of(framework, op), OPS[op]
            count = sum(operand.name in arguments for operand in spec.operands)
            what = {"framework": framework, "op": op, "tensors": count}

            def checked(spec: Any = spec, arguments: Any = arguments) -> Call:
                return check_call(spec, (), arguments, backend="nothing")

            def unbound(op: str = op, arguments: Any = arguments) -> None:
                getattr(backend, op)(**arguments)

            rows.append({**what, "what": "validation"} | row(sample(checked, runs, calls)))
            rows.append({**what, "what": "unbound call, no work"} | row(sample(unbound, runs, calls)))
    bound = backend.bind(OPS_MEASURED[0], **tensors_of("numpy", OPS_MEASURED[0]))
    launch = backend.plan(bound.call)
    bound_times: list[float] = []
    launch_times: list[float] = []
    for _ in range(runs):  # in turns
        bound_times += sample(lambda: bound(0), 1, calls * 10)
        launch_times += sample(lambda: launch(0), 1, calls * 10)
    rows.append({"what": "bound call"} | row(bound_times))
    rows.append({"what": "its launch alone (floor)"} | row(launch_times))
    overhead = [b - a for b, a in zip(bound_times, launch_times, strict=True)]
    rows.append({"what": "bound call over its launch"} | row(overhead))
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40, help="timed runs per row")
    parser.add_argument("--calls", type=int, default=500, help="calls per run")
    parser.add_argument("--out", type=Path, help="write the document here instead of printing it")
    args = parser.parse_args()
    rows = measure(args.runs, args.calls)
    write({"unit": "us per call", "runs": args.runs, "calls_per_run": args.calls, "rows": rows}, args.out)


if __name__ == "__main__":
    main()
