"""Prove a backend: every op it claims against the contract's reference, edges, hostile values and distributions.

Exit status 1 if anything fails, passes although a failure is expected, or a rule of a claimed op is untouched.
Level soak runs rounds with new seeds until it is interrupted (SIGINT, SIGTERM), or for --rounds.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from specdec_hal.cli.output import Output, output_file, writing
from specdec_hal.cli.tables import Rows
from specdec_hal.errors import ConfigError
from specdec_hal.plugin import registry
from specdec_hal.tensors.memory import host_free

if TYPE_CHECKING:
    from specdec_hal_conformance.parallel import Job, Task
    from specdec_hal_conformance.report import Report, Result
    from specdec_hal_conformance.xfail import ExpectedFailures

HELP = "prove that a backend obeys the contract"
LEVELS = ("quick", "full", "soak")
SHOWN = 10
"""Failures printed in full; the others by name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Cases to run, and output files."""
    parser.add_argument("--backend", metavar="NAME", help="the backend (default: auto)")
    parser.add_argument("--op", metavar="OP", action="append", help="only this op; may be repeated")
    parser.add_argument("--level", choices=LEVELS, default="quick", help="how thorough (default: quick)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the generated cases (default: 0)")
    parser.add_argument("--device", metavar="D", help="device of the tensors, such as cuda:1")
    parser.add_argument(
        "--option", metavar="KEY=VALUE", action="append", default=[], help="an option of the backend; may be repeated"
    )
    parser.add_argument("--junit", metavar="FILE", type=output_file, help="write the results as JUnit XML")
    parser.add_argument("--xfail", metavar="FILE", type=Path, help="expected failures, 'PATTERN # reason' a line")
    parser.add_argument("--coverage", action="store_true", help="report which rules of the claimed ops were covered")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument(
        "--samples", type=int, help="requests per distribution test (default: 73728: errors of 0.02 show)"
    )
    parser.add_argument("--case-seconds", type=float, default=900, help="time limit of a case (default: 900)")
    parser.add_argument("--case-gib", type=float, help="memory limit of a process, GiB (default: 90 %% of free memory)")
    parser.add_argument("--rounds", type=int, help="soak: stop after this many rounds")
    parser.add_argument(
        "--save", metavar="DIR", type=Path, default=Path(), help="folder for inputs of crashes (default: .)"
    )


def run(args: argparse.Namespace, output: Output) -> int:
    """Run the suite and print the report."""
    from specdec_hal_conformance.guarded import check_device
    from specdec_hal_conformance.options import parse_options
    from specdec_hal_conformance.parallel import Job
    from specdec_hal_conformance.report import Report
    from specdec_hal_conformance.suite import units
    from specdec_hal_conformance.xfail import ExpectedFailures

    _need_hypothesis()
    if args.rounds is not None and args.level != "soak":
        raise ConfigError("--rounds: only level soak has rounds; add --level soak or leave it out")
    if args.jobs < 1:
        raise ConfigError(f"--jobs: expected at least 1, got {args.jobs}; change it or leave it out")
    if args.samples is not None and args.samples < 1000:
        raise ConfigError(f"--samples: expected at least 1000, got {args.samples}; fewer show nothing")
    name = registry.choose(args.backend)
    options = parse_options(args.option)
    # Check options and devices once, not in every process.
    device = check_device(registry.get_backend(name, options=options), args.device)
    expected = ExpectedFailures.read(args.xfail) if args.xfail else ExpectedFailures([])
    if not args.case_seconds > 0 or (args.case_gib is not None and not args.case_gib > 0):
        raise ConfigError("--case-seconds, --case-gib: expected a number > 0; change it or leave it out")
    free = host_free()
    memory = int(args.case_gib * (1 << 30)) if args.case_gib is not None else None if free is None else free * 9 // 10
    job = Job(name, args.level, args.device, options, args.save, seconds=args.case_seconds, memory=memory)
    if args.samples is not None:
        job.samples = args.samples
    report = Report(name, device, args.level, args.seed)
    work = units(args.op, args.level)
    began = time.perf_counter()
    rounds: Iterator[int] = itertools.count() if args.level == "soak" else iter(range(1))
    if args.rounds is not None:
        rounds = iter(range(args.rounds))
    # Background jobs often ignore SIGINT.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler) if args.level == "soak" else None
    try:
        for number in rounds:
            tasks = [(unit, args.seed + number) for unit in work]
            _round(report, job, tasks, args.jobs, expected, number)
            report.rounds = number + 1
            if args.level == "soak":
                report.count_passed()
    except KeyboardInterrupt:
        if args.level != "soak":
            raise
        print(file=sys.stderr)
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
    if args.op is None and args.level != "soak":
        report.problems += expected.stale()
    report.seconds = time.perf_counter() - began
    order = {str(unit): number for number, unit in enumerate(work)}
    # Results without a group (a process that died before its first case) come first.
    report.results.sort(key=lambda result: order.get(f"{result.op}:{_group(result)}", -1))
    return _finish(report, args, output)


def _group(result: Result) -> str:
    kind = result.case.partition(":")[0]
    return {"edge": "edges", "trace": "traces"}.get(kind, kind)


def _need_hypothesis() -> None:
    try:
        import hypothesis  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "the conformance suite needs hypothesis, which is not installed; pip install 'specdec-hal[conformance]'"
        ) from error


def _round(report: Report, job: Job, tasks: list[Task], jobs: int, expected: ExpectedFailures, number: int) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from specdec_hal_conformance.parallel import run_tasks

    title = f"{job.backend}, {job.level}" + (
        f", round {number + 1} (seed {tasks[0][1]})" if job.level == "soak" else ""
    )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, transient=job.level != "soak") as progress:
        bar = progress.add_task(title, total=len(tasks))
        for result in run_tasks(job, tasks, min(jobs, len(tasks)), lambda task: progress.advance(bar)):
            result = expected.apply(result)
            report.results.append(result)
            if result.status in ("failed", "unexpected pass") and job.level == "soak":
                progress.console.print(f"FAILED {result.id}: {result.detail}", markup=False, soft_wrap=True)


def _finish(report: Report, args: argparse.Namespace, output: Output) -> int:
    from specdec_hal_conformance.rules import coverage

    covered = coverage(report, args.op)
    if args.junit is not None:
        with writing(args.junit):
            report.write_junit(args.junit)
    # Soak repeats drawn cases, so it shows nothing about rules.
    untouched = {} if report.level == "soak" else covered.untouched
    ok = report.ok and not untouched
    if output.json:
        document = report.document()
        document["coverage"] = {"rules": covered.total, "untouched": untouched, "refused": covered.refused}
        output.document({**document, "ok": ok})
        return 0 if ok else 1
    print_report(report, output)
    console = output.console
    if args.coverage:
        touched = covered.total - len(untouched) - len(covered.refused)
        console.print(f"rules: {touched} of {covered.total} touched, {len(covered.refused)} refused by the backend")
    for rule, statement in untouched.items():
        console.print(f"FAILED no case touched {rule}: {statement}", soft_wrap=True)
    return 0 if ok else 1


def print_report(report: Report, output: Output) -> None:
    """The table, then failures."""
    console = output.console
    title = f"Conformance of '{report.backend}' on {report.device}, level {report.level}, seed {report.seed}"
    rows = Rows(title, ("op", "mode", "passed", "failed", "refused", "expected", ""))
    for (op, mode), counts in report.table().items():
        wrong = counts["failed"] + counts["unexpected pass"]
        rows.add_row(
            op, mode, _count(counts["passed"]), _count(wrong), _count(counts["refused"]),
            _count(counts["expected failure"]), "; ".join(report.reasons(op, mode)), style="red" if wrong else None,
        )  # fmt: skip
    rows.print(console)
    for cause in report.causes():
        console.print(f"likely cause: {cause}", soft_wrap=True)
    for number, result in enumerate(report.failures):
        if number == SHOWN:
            console.print(f"and {len(report.failures) - SHOWN} more:")
        if number < SHOWN + 50:
            console.print(f"FAILED {result.id}: {result.detail}", soft_wrap=True)
        if number < SHOWN and result.reproduction:
            console.print(result.reproduction, soft_wrap=True)
    for problem in report.problems:
        console.print(f"FAILED {problem}", soft_wrap=True)
    totals = ", ".join(f"{count} {status}" for status, count in report.totals().items() if count)
    console.print(f"{totals or 'nothing was run'} in {report.seconds:.1f} s")


def _count(number: int) -> str:
    return str(number) if number else ""
