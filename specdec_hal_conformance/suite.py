"""Run the suite: units of work, each an op and a group of cases, and their results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from specdec_hal.errors import SpecDecError, UnsupportedError
from specdec_hal.ops import OPS, get_op
from specdec_hal.plugin.backend import Backend
from specdec_hal.text import describe
from specdec_hal_conformance import arguments, checks, distributions, lookups, traces
from specdec_hal_conformance.case import Case, mode_of
from specdec_hal_conformance.checks import Check
from specdec_hal_conformance.decodes import decodes
from specdec_hal_conformance.edges import edge_cases
from specdec_hal_conformance.guarded import GuardedHost, device_for
from specdec_hal_conformance.report import FAILED, PASSED, REFUSED, Report, Result
from specdec_hal_conformance.reproduction import source
from specdec_hal_conformance.rules import full_id
from specdec_hal_conformance.shrink import shrink
from specdec_hal_conformance.subject import CallFailed, NotClaimed, Subject
from specdec_hal_conformance.trial import Trial
from specdec_hal_conformance.wide import WideCase, WideIndex, wide_cases
from specdec_hal_conformance.xfail import ExpectedFailures

GROUPS = ("edges", "wide", "arguments", "generated", "hostile", "traces", "decodes", "statistics")


@dataclass(frozen=True)
class Level:
    """Amounts. `generated` and `hostile`: cases per op. `traces`: recorded calls per op."""

    generated: int
    hostile: int
    traces: int


LEVELS: Mapping[str, Level] = {
    "quick": Level(100, 60, 12),
    "full": Level(2000, 1000, 10**6),
    "soak": Level(150, 80, 0),
}
"""soak: of one round; every round has its own seed."""


_NOT_SOAKED = ("edges", "wide", "traces", "decodes", "arguments")


class Unit(NamedTuple):
    """A unit of work for one process."""

    op: str
    group: str

    def __str__(self) -> str:
        return f"{self.op}:{self.group}"


@dataclass
class Settings:
    """Settings of a run. `samples`: of each distribution test. `started` is called before each case."""

    level: str = "quick"
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    shrink: bool = True
    stop_at_failure: bool = False
    samples: int = distributions.SAMPLES
    started: Callable[[str], None] = lambda case_id: None


def units(ops: Iterable[str] | None = None, level: str = "quick") -> list[Unit]:
    """The units of some ops (None: all). Raises UnsupportedError for an op that the contract lacks."""
    chosen = list(OPS) if ops is None else [get_op(op).name for op in ops]
    groups = [group for group in GROUPS if not (level == "soak" and group in _NOT_SOAKED)]
    own: dict[str, Callable[[str], Iterable[object]]] = {  # not every op has them
        "wide": wide_cases,
        "traces": lambda op: traces.trace_cases(op, 1),
        "decodes": decodes,
        "statistics": distributions.distribution_tests,
    }
    return [Unit(op, group) for op in chosen for group in groups if group not in own or any(own[group](op))]


_EDGE = (checks.EQUALITY, checks.SENTINELS, checks.POISON, checks.DETERMINISM, checks.COLUMNS, checks.INDEX)
_GENERATED = (
    checks.EQUALITY, checks.SENTINELS, checks.POISON, checks.DETERMINISM, checks.REPLAY, checks.INDEPENDENCE,
    checks.INDEX,
)  # fmt: skip
_HOSTILE = (checks.EQUALITY, checks.SENTINELS, checks.POISON, checks.FENCES, checks.BOUNDED)
_TRACE = (checks.EQUALITY, checks.SENTINELS)


def cases_of(unit: Unit, settings: Settings) -> Iterator[tuple[Case, tuple[Check, ...]]]:
    """The cases of a unit with their checks; none for groups without cases."""
    level = LEVELS[settings.level]
    if unit.group == "edges":
        yield from ((case, _EDGE) for case in edge_cases(unit.op))
    elif unit.group in ("generated", "hostile"):
        from specdec_hal_conformance.generated import drawn_cases

        count = level.generated if unit.group == "generated" else level.hostile
        asked = _GENERATED if unit.group == "generated" else _HOSTILE
        yield from ((case, asked) for case in drawn_cases(unit.op, unit.group, count, settings.seed))
    elif unit.group == "traces":
        yield from ((case, _TRACE) for case in traces.trace_cases(unit.op, level.traces))


def run_unit(subject: Subject, unit: Unit, settings: Settings) -> Iterator[Result]:
    """The results of one unit, in order."""
    if subject.backend.capability(unit.op) is None:
        yield Result(unit.op, "", f"{unit.group}:all", "capability", REFUSED, "the op is missing")
        return
    if unit.group in ("arguments", "wide", "decodes", "statistics"):
        yield from _answers(subject, unit, settings)
    else:
        yield from _cases(subject, unit, settings)


def _cases(subject: Subject, unit: Unit, settings: Settings) -> Iterator[Result]:
    shown: set[tuple[str, str]] = set()
    for case, asked in cases_of(unit, settings):
        settings.started(case.id)
        own = tuple(full_id(case.op, rule) for rule in case.rules)
        try:
            trial = Trial(subject, case)
        except CallFailed as failure:
            yield Result(case.op, "", case.name, "workspace", FAILED, str(failure), own)
            continue
        mode = mode_of(case.op, trial.given)
        result = partial(Result, case.op, mode, case.name)
        refusal = _refusal(subject, trial)
        if refusal is not None:
            began = time.perf_counter()
            wrong = None if subject.refusal(trial.op, trial.given) is None else _not_refused(trial)
            seconds = time.perf_counter() - began
            if wrong is None:
                yield result("capability", REFUSED, refusal, own, seconds=seconds)
            else:
                yield result("capability", FAILED, wrong, seconds=seconds)
            continue
        for check in (check for check in asked if check.applies(trial)):
            began = time.perf_counter()
            try:
                wrong = check(trial)
            except NotClaimed as refused:
                yield result(check.name, REFUSED, str(refused), own, seconds=time.perf_counter() - began)
                continue
            touched = own + tuple(full_id("", rule) for rule in check.rules)
            if wrong is None:
                yield result(check.name, PASSED, rules=touched, seconds=time.perf_counter() - began)
                continue
            reproduction = ""
            if settings.shrink and (mode, check.name) not in shown:
                shown.add((mode, check.name))
                reproduction = _reproduction(trial, check, settings)
            seconds = time.perf_counter() - began
            yield result(check.name, FAILED, wrong, touched, reproduction, seconds)
            if settings.stop_at_failure:
                return


def _refusal(subject: Subject, trial: Trial) -> str | None:
    """Why the backend does not claim this case: the call, or the ops for its index."""
    refusal = subject.refusal(trial.op, trial.given)
    if refusal is None and "index" in trial.given:
        for other in lookups.NEEDS.get(trial.op, lookups.INDEX_OPS):
            if subject.backend.capability(other) is None:
                return f"{other} is missing"
    return refusal


def _not_refused(trial: Trial) -> str | None:
    """A call outside the capabilities must raise UnsupportedError and write nothing."""
    subject = trial.subject
    placed, arguments = subject.place(trial.given)
    try:
        subject.backend.bind(trial.op, **arguments)(subject.device.stream())
    except UnsupportedError:
        outcome = subject.outcome(trial.op, trial.given, placed)
        return "; ".join(outcome.damage) or None
    except SpecDecError as error:
        return f"a call outside its capabilities raised {type(error).__name__} instead of UnsupportedError: {error}"
    return "a call outside its capabilities was not refused"


def _reproduction(trial: Trial, check: Check, settings: Settings) -> str:
    subject, case = trial.subject, Case(trial.op, trial.case.name, trial.case.make, note=trial.case.note)

    def fails(inputs: dict[str, Any]) -> bool:
        try:
            smaller = Trial(subject, case, inputs)
            return subject.refusal(trial.op, inputs) is None and check(smaller) is not None
        except (SpecDecError, CallFailed, NotClaimed):
            return False  # no valid call

    smallest = shrink(trial.op, trial.given, fails) if fails(trial.given) else trial.given
    return source(subject.name, trial.case, check.name, smallest, settings.seed, settings.options)


class Question(NamedTuple):
    """A test that makes its own calls. `refusal`: why the backend does not claim them; `wrong`: the fault, or None."""

    case: str
    check: str
    rules: tuple[str, ...]
    refusal: Callable[[], str | None]
    wrong: Callable[[], str | None]
    mode: str = ""


def _questions(subject: Subject, unit: Unit, settings: Settings) -> Iterator[Question]:
    op = unit.op
    if unit.group == "arguments":
        for how in arguments.malformed(op, subject):
            claims, refuses = arguments.not_claimed, arguments.wrongly_refused
            asks = partial(claims, op, subject, how), partial(refuses, op, subject, how)
            yield Question(how.name, "refusal", (full_id("", "refusal"),), *asks)
    elif unit.group == "wide":
        for case in wide_cases(op):
            asks = partial(_unmade, subject, case), partial(case.wrong, subject)
            yield Question(case.name, "equality", (full_id("", "sizes"),), *asks)
    elif unit.group == "decodes":
        for decode in decodes(op):
            rules = (*(full_id(op, rule) for rule in decode.rules), full_id("", "independent"))
            asks = partial(decode.refusal, subject), partial(decode.wrong, subject)
            yield Question(decode.name, "decoding", rules, *asks)
    else:
        for test in distributions.distribution_tests(op):
            rules = (*(full_id(op, rule) for rule in test.rules), full_id("", "random"))
            asks = partial(test.refusal, subject), partial(test.run, subject, settings.samples)
            yield Question(test.name, "distribution", rules, *asks, test.mode)


def _unmade(subject: Subject, case: WideCase | WideIndex) -> str | None:
    if not isinstance(subject.device, GuardedHost):
        return "rows that share one page can be made in a CPU's memory only"
    return case.refusal(subject)


def _answers(subject: Subject, unit: Unit, settings: Settings) -> Iterator[Result]:
    for one in _questions(subject, unit, settings):
        case = f"{unit.group}:{one.case}"
        settings.started(f"{unit.op}/{case}")
        began, wrong = time.perf_counter(), None
        try:
            refusal = one.refusal()
            wrong = None if refusal else one.wrong()
        except MemoryError as error:
            refusal = f"this machine has not the address space: {error}"
        except NotClaimed as refused:
            refusal = str(refused)
        except CallFailed as failure:
            refusal, wrong = None, str(failure)
        except Exception as error:
            refusal, wrong = None, f"its outputs cannot be evaluated: {describe(error)}"
        status = REFUSED if refusal else FAILED if wrong else PASSED
        seconds, detail = time.perf_counter() - began, refusal or wrong or ""
        yield Result(unit.op, one.mode, case, one.check, status, detail, one.rules, seconds=seconds)
        if wrong and settings.stop_at_failure:
            return


def run(
    backend: Backend,
    *,
    ops: Iterable[str] | None = None,
    level: str = "quick",
    seed: int = 0,
    device: str | None = None,
    expected_failures: ExpectedFailures | None = None,
    stop_at_failure: bool = False,
    shrink_failures: bool = True,
    samples: int = distributions.SAMPLES,
) -> Report:
    """Run the suite in this process, on a backend that need not be registered."""
    subject = Subject(backend, device_for(backend, device))
    settings = Settings(level, seed, {}, shrink_failures, stop_at_failure, samples)
    report = Report(backend.name, device or backend.device, level, seed)
    expected = expected_failures or ExpectedFailures([])
    began = time.perf_counter()
    for unit in units(ops, level):
        for result in run_unit(subject, unit, settings):
            report.results.append(expected.apply(result))
        if stop_at_failure and not report.ok:
            break
    if expected_failures is not None and ops is None:
        report.problems += expected_failures.stale()
    report.seconds = time.perf_counter() - began
    return report
