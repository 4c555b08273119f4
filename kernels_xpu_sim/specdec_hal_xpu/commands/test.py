"""Run both paths of a wrapper, the CPU's and its kernels on the emulator, and compare every buffer byte for byte.

  specdec-hal xpu test scale.cpp scale.xpu --wrapper 'plugin::scale<float>' --inputs scale_inputs.py

The first file defines the wrapper, int scale(Context* ctx, ...); the others are its kernels and other sources. The
Python file has arguments(rng), which returns the arguments after the context by parameter name: {"x": array, "n": 5,
...}; pointers and vectors are NumPy arrays of the declared type. Every case runs in every mode, with every seed and
every policy of copies; a run that differs from the CPU path, or has findings, fails (status 1). Use --tolerance y=1e-6
for a kernel that sums in another order than the CPU path. The mode strict also runs every case once without the fences
that the vendor's compiler adds (--profile portable); its findings are advisory. Variables of a kernel that may be used
uninitialized, and checks of the wrapper that name another type than their pointer's, fail too.
XPU_SIM_SUPPRESSIONS=FILE passes over findings, as in programs of xpu cc; an entry that no run needs fails too.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_hal.cli.output import Output, output_file
from specdec_hal.errors import CompileError
from specdec_hal_xpu.cc import MODES, Build
from specdec_hal_xpu.commands.cc import add_compiler_arguments

if TYPE_CHECKING:
    from specdec_hal_xpu.test import Failure

HELP = "test a wrapper's kernels against its CPU path"
POLICIES = ("eager", "deferred", "random")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Sources, the wrapper, and what to run."""
    parser.add_argument("files", metavar="FILE", nargs="+", help="the wrapper's file, then kernels and other sources")
    parser.add_argument("--wrapper", metavar="NAME", required=True, help="the function's name in C++")
    parser.add_argument("--inputs", metavar="FILE", type=Path, required=True, help="a Python file with arguments(rng)")
    parser.add_argument("--cases", metavar="N", type=int, default=5, help="inputs to try (default: 5)")
    parser.add_argument("--seeds", metavar="N", type=int, default=3, help="orders of the cores (default: 3)")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of the inputs (default: 0)")
    parser.add_argument("--mode", choices=MODES, action="append", help="only this one; may be repeated")
    parser.add_argument("--dma", choices=POLICIES, action="append", help="only this policy; may be repeated")
    parser.add_argument("--options", default="", help="more options of the emulator, as in XPU_SIM")
    parser.add_argument("--keep-going", action="store_true", help="continue after findings that leave memory intact")
    parser.add_argument(
        "--tolerance",
        dest="tolerances",
        metavar="BUFFER=RTOL[,ATOL]",
        type=_tolerance,
        action="append",
        default=[],
        help="compare a buffer of floats within |got - expected| <= ATOL + RTOL * |expected|, not byte for byte",
    )
    parser.add_argument(
        "--exclude",
        metavar="BUFFER",
        action="append",
        default=[],
        help="skip this buffer, such as scratch memory",
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        type=output_file,
        help="write a timeline of the first failing run, or of the first run",
    )
    parser.add_argument("--coverage", action="store_true", help="list the lines that no core ran in mode fast")
    add_compiler_arguments(parser)


def _tolerance(text: str) -> tuple[str, tuple[float, float]]:
    name, _, values = text.partition("=")
    try:
        rtol, _, atol = values.partition(",")
        numbers = float(rtol), float(atol or 0)
    except ValueError:
        numbers = -1.0, -1.0
    if not name or not all(number >= 0 for number in numbers):
        raise argparse.ArgumentTypeError(f"expected BUFFER=RTOL[,ATOL], got '{text}'; such as y=1e-6")
    return name, numbers


def run(args: argparse.Namespace, output: Output) -> int:
    """Compile, run, compare; 1 if something failed."""
    from specdec_hal_xpu.coverage import to_text
    from specdec_hal_xpu.test import Plan, WrapperTest, load_arguments

    plan = Plan(
        cases=args.cases,
        seeds=args.seeds,
        seed=args.seed,
        dma=tuple(args.dma or POLICIES),
        modes=tuple(args.mode or MODES),
        tolerances=dict(args.tolerances),
        excluded=tuple(args.exclude),
        options=",".join(filter(None, (args.options, "keep_going=1" if args.keep_going else ""))),
    )
    if args.coverage and "fast" not in plan.modes:
        raise CompileError("expected --coverage with --mode fast, which counts lines, got none; add --mode fast")
    if min(plan.cases, plan.seeds) < 1:
        raise CompileError(f"expected at least 1 case and 1 seed, got {plan.cases} and {plan.seeds}; run something")
    arguments = load_arguments(args.inputs)
    with tempfile.TemporaryDirectory(prefix="xpu_test-") as folder:
        what = Build(
            sources=tuple(map(Path, args.files[1:])),
            output=Path(folder) / "test",
            profiles=tuple(args.profiles),
            defines=tuple(args.defines),
            includes=tuple(args.includes),
            flags=tuple(args.flags),
            coverage=args.coverage,
        )
        test = WrapperTest(what, Path(args.files[0]), args.wrapper, Path(folder))
        outcome = test.run(arguments, plan)
        if test.warnings:
            print("\n".join(test.warnings), file=sys.stderr)
        if args.trace:
            test.trace(arguments, plan, outcome, args.trace)
        coverage = test.coverage() if args.coverage else None
    if output.json:
        lines = None if coverage is None else [asdict(one) for one in coverage]
        output.document({**asdict(outcome), "coverage": lines})
        return int(outcome.failed)
    # Group the runs that one bug breaks: their messages begin alike.
    alike: dict[str, list[Failure]] = {}
    for failure in outcome.failures:
        alike.setdefault(failure.message.partition("\n")[0], []).append(failure)
    for failures in alike.values():
        print(_text(failures[0]) + (f"\n  and {len(failures) - 1} more runs like this" if len(failures) > 1 else ""))
    if coverage is not None:
        print(to_text(coverage))
    for entry in outcome.unused_suppressions:
        print(f"{entry}: suppresses nothing; remove it")
    if outcome.advisory:
        print("advisory, without the fences that the vendor's compiler adds (--profile portable):")
    for finding in outcome.advisory:
        print("  " + _line(finding))
    for finding in outcome.of_sources:
        print(_line(finding))
    failed = len(outcome.failures)
    print(f"{outcome.wrapper}: {outcome.runs} runs, {failed or 'none'} failed")
    return int(outcome.failed)


def _line(finding: dict[str, Any]) -> str:
    at = finding["at"]
    return f"{at['file']}:{at['line']}: {finding['check']}: {finding['message']}"


def _text(failure: Failure) -> str:
    run = f"case {failure.case}, --mode {failure.mode}" + (f", XPU_SIM={failure.options}" if failure.options else "")
    return f"{run}:\n  " + failure.message.replace("\n", "\n  ")
