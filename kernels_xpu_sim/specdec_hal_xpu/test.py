"""Run both paths of a wrapper on the same inputs and compare all buffers, byte for byte or within a tolerance.

A wrapper takes a context, checks its arguments, and runs the C++ reference or its kernels by the context's device.
Inputs come from a Python file::

    def arguments(rng):                        # numpy.random.Generator
        n = int(rng.integers(1, 1000))
        x = rng.normal(size=n).astype(np.float32)
        return {"x": x, "y": np.zeros_like(x), "n": n}   # by the names of the wrapper's parameters after the context
"""

from __future__ import annotations

import copy
import fnmatch
import os
import re
import runpy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from specdec_hal.errors import CompileError
from specdec_hal.text import describe, one_line
from specdec_hal_xpu.calls import Array, Call, CallProgram, Host, Parameter, Ran, definitions
from specdec_hal_xpu.cc import Build
from specdec_hal_xpu.coverage import FileCoverage, read_coverage

Arguments = Callable[[np.random.Generator], Mapping[str, Any]]
Finding = dict[str, Any]

PORTABLE = "seed=0,dma=eager,profile=portable"
_UNINITIALISED = re.compile(r"(.+?):(\d+):\d+: warning: (.*) \[-W(?:maybe-)?uninitialized\]")
_WRAPPER_TYPE = re.compile(r"^.*: wrapper_type: .*\n(?:  .*\n)*", re.MULTILINE)


@dataclass(frozen=True)
class Plan:
    """The runs: each of `cases` inputs, in each of `modes`, with each of `seeds` seeds and each policy of `dma`.

    `options`: more options of the emulator, as in XPU_SIM. `seed`: of the inputs. `tolerances`: (rtol, atol) of float
    buffers, as in :func:`numpy.isclose`; others except `excluded` are compared byte for byte.
    """

    cases: int = 5
    seeds: int = 3
    dma: tuple[str, ...] = ("eager", "deferred", "random")
    modes: tuple[str, ...] = ("fast", "asan", "strict")
    options: str = ""
    seed: int = 0
    tolerances: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    excluded: tuple[str, ...] = ()

    def schedules(self) -> Iterator[str]:
        """The options of each run of a case."""
        for dma in self.dma:
            for seed in range(self.seeds):
                yield ",".join(part for part in (f"seed={seed}", f"dma={dma}", self.options) if part)


@dataclass(frozen=True)
class Failure:
    """A failed run, with the options to repeat it."""

    case: int
    mode: str
    options: str
    message: str
    findings: list[Finding] = field(default_factory=list)


@dataclass
class Outcome:
    """The number of runs, and failures.

    `of_sources`: findings of the compiler's and of the wrapper's checks, once each. `advisory`: findings of the mode
    strict without the fences that the vendor's compiler adds (profile portable), which are no failures.
    `unused_suppressions`: entries of XPU_SIM_SUPPRESSIONS without effect in all runs.
    """

    wrapper: str
    runs: int = 0
    failures: list[Failure] = field(default_factory=list)
    of_sources: list[Finding] = field(default_factory=list)
    advisory: list[Finding] = field(default_factory=list)
    unused_suppressions: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether anything but advice was found."""
        return bool(self.failures or self.of_sources or self.unused_suppressions)


def load_arguments(path: Path) -> Arguments:
    """The function ``arguments`` of a Python file.

    Raises:
        CompileError: the file fails or lacks the function.
    """
    try:
        found = runpy.run_path(str(path)).get("arguments")
    except Exception as error:
        raise CompileError(f"{path}: expected a Python file that runs, got {describe(error)}; fix it") from error
    if not callable(found):
        raise CompileError(f"{path}: expected a function arguments(rng), found none; define it")
    checked: Arguments = found
    return checked


class WrapperTest:
    """A wrapper, `name` in C++ (``plugin::scale<float>``), defined in `main`, with the kernels among `what`'s sources.

    Programs are made in `folder`, one for each mode; with `what.coverage`, the fast one counts the kernels' lines.
    """

    def __init__(self, what: Build, main: Path, name: str, folder: Path) -> None:
        self._what, self._main, self._name, self._folder = what, main, name, folder
        self._programs: dict[str, CallProgram] = {}
        self.warnings: list[str] = []
        """The compiler's, once each, without those that have become findings."""
        self._of_sources: list[Finding] = []

    def program(self, mode: str) -> CallProgram:
        """The program of a mode, compiled on first use."""
        if mode not in self._programs:
            output = self._folder / f"test_{mode}"
            what = replace(self._what, mode=mode, output=output, coverage=self._what.coverage and mode == "fast")
            messages: list[str] = []
            self._programs[mode] = CallProgram.build(what, [self._main], [self._name], messages)
            warnings = [line for line in messages if " warning: " in line]
            found = {line: one for line in warnings if (one := uninitialised(line))}
            if len(self._programs) == 1:  # instrumentation draws false ones
                _add(self._of_sources, found.values())
            self.warnings += [line for line in warnings if line not in found and line not in self.warnings]
        return self._programs[mode]

    def run(self, arguments: Arguments, plan: Plan) -> Outcome:
        """Run the plan; findings and differences are failures.

        Raises:
            CompileError: the sources do not compile, or the arguments do not match the wrapper.
        """
        outcome = Outcome(self._name)
        unused: list[list[str]] = []

        def ran(call: Call, options: str = "") -> tuple[str, Ran]:
            message, ran, of_sources = _ran(program, call, options)
            unused.append(ran.unused_suppressions)
            _add(outcome.of_sources, of_sources)
            return message, ran

        self._check_names(arguments, plan)
        portable = "strict" in plan.modes and "profile=" not in plan.options and not self._what.profiles
        for mode in plan.modes:
            program = self.program(mode)
            parameters = program.signatures[self._name]
            for case in range(plan.cases):
                names = [parameter.name for parameter in parameters]
                given = _by_name(self._name, names, arguments(np.random.default_rng([plan.seed, case])))
                _check_buffers(self._name, parameters, plan)
                expected = copy.deepcopy(given)
                message, one = ran(Call(self._name, list(expected.values()), cpu=True))
                if message:
                    outcome.runs += 1
                    outcome.failures.append(Failure(case, mode, "", f"the CPU path: {message}", one.findings))
                    continue
                for options in plan.schedules():
                    outcome.runs += 1
                    got = copy.deepcopy(given)
                    message, one = ran(Call(self._name, list(got.values())), options)
                    message = message or _difference(parameters, expected, got, plan)
                    if message:
                        outcome.failures.append(Failure(case, mode, options, message, one.findings))
                if portable and mode == "strict":
                    options = ",".join(filter(None, (PORTABLE, plan.options)))
                    _, one = ran(Call(self._name, list(copy.deepcopy(given).values())), options)
                    _add(outcome.advisory, (f for f in one.findings if f["severity"] != "notice"))
        known = {_place(f) for failure in outcome.failures for f in failure.findings}
        outcome.advisory = [f for f in outcome.advisory if _place(f) not in known]
        left, used = _suppressed(self._of_sources)
        outcome.of_sources = left + outcome.of_sources
        outcome.unused_suppressions = [
            entry for entry in unused[0] if entry not in used and all(entry in one for one in unused)
        ]
        return outcome

    def _check_names(self, arguments: Arguments, plan: Plan) -> None:
        """Before anything is compiled, if the text has one definition of the wrapper."""
        plain = re.sub(r"<.*>", "", self._name).rpartition("::")[2]
        found = [names for name, names in definitions([self._main]) if name == plain]
        if len(found) == 1:
            names = found[0][1:]  # without the context
            _by_name(self._name, names, arguments(np.random.default_rng([plan.seed, 0])))
            for name in (*plan.tolerances, *plan.excluded):
                if name not in names:
                    raise _no_buffer(self._name, names, name)

    def coverage(self) -> list[FileCoverage]:
        """Coverage of the fast program's runs so far.

        Raises:
            CompileError: it was not compiled for coverage, or did not run.
        """
        return read_coverage(Build(sources=(), output=self._folder / "test_fast").counts)

    def trace(self, arguments: Arguments, plan: Plan, outcome: Outcome, path: Path) -> None:
        """Write the timeline of the first run that failed, or of the first run."""
        first = Failure(0, plan.modes[0], next(plan.schedules()), "")
        run = next((failure for failure in outcome.failures if failure.options), first)
        program = self.program(run.mode)
        given = arguments(np.random.default_rng([plan.seed, run.case]))
        names = [parameter.name for parameter in program.signatures[self._name]]
        call = Call(self._name, list(_by_name(self._name, names, given).values()))
        program.run([call], options=run.options, environment={"XPU_SIM_TRACE": str(path.absolute())})


def _ran(program: CallProgram, call: Call, options: str) -> tuple[str, Ran, list[Finding]]:
    """The failure, if any, the run, and the findings of the wrapper's source."""
    ran = program.run([call], options=options)
    of_sources = [one for one in ran.findings if one["check"] == "wrapper_type"]
    if of_sources:
        others = [one for one in ran.findings if one not in of_sources]
        ran = replace(ran, findings=others, err=_WRAPPER_TYPE.sub("", ran.err))
    message = ""
    if any(one["severity"] != "notice" for one in ran.findings):
        message = ran.err.strip()
    elif not ran.statuses:
        message = f"the process ended with {ran.status}: {one_line(ran.err)}"
    elif ran.statuses[0] != 0:
        message = f"it gave {ran.statuses[0]}: {one_line(ran.err)}"
    return message, ran, of_sources


def uninitialised(line: str) -> Finding | None:
    """The finding that a message of the compiler's is."""
    match = _UNINITIALISED.fullmatch(line)
    if match is None:
        return None
    at = {"file": match[1], "line": int(match[2])}
    return {"check": "maybe_uninitialised", "severity": "defect", "message": match[3], "at": at}


def _place(finding: Finding) -> tuple[str, str, int]:
    return finding["check"], finding["at"]["file"], finding["at"]["line"]


def _add(to: list[Finding], findings: Iterable[Finding]) -> None:
    """Append those whose check and place are new."""
    for one in findings:
        if _place(one) not in map(_place, to):
            to.append(one)


def _suppressed(findings: list[Finding]) -> tuple[list[Finding], set[str]]:
    """Those that XPU_SIM_SUPPRESSIONS does not have, and its entries that had an effect, as programs print them."""
    path = os.environ.get("XPU_SIM_SUPPRESSIONS")
    lines = Path(path).read_text(encoding="utf-8").splitlines() if path and findings else []
    left, used = list(findings), set[str]()
    for number, line in enumerate(lines, 1):
        words = line.split(None, 2)
        if len(words) < 3 or line.startswith("#"):
            continue
        for one in findings:
            check, file, at = _place(one)
            if _matches(check, words[0]) and (_matches(file, words[1]) or _matches(f"{file}:{at}", words[1])):
                left = [other for other in left if other is not one]
                used.add(f"{path}:{number}: {words[0]} {words[1]}")
    return left, used


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"*/{pattern}")


def _by_name(function: str, names: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments in the order of the parameters; unnamed parameters take the remaining ones in order."""
    named = [name for name in names if not name.startswith("#")]
    rest = [name for name in given if name not in named]
    if len(given) != len(names) or not set(named) <= set(given):
        raise CompileError(
            f"{function}: expected {len(names)} arguments ({', '.join(names)}), got {len(given)} "
            f"({', '.join(given)}); give each by its name"
        )
    return {name: given[name if name in given else rest.pop(0)] for name in names}


def _no_buffer(function: str, buffers: Iterable[str], name: str) -> CompileError:
    return CompileError(f"{function}: expected a buffer ({', '.join(buffers)}), got '{name}'; name one of them")


def _check_buffers(function: str, parameters: Sequence[Parameter], plan: Plan) -> None:
    buffers = {parameter.name: parameter.type for parameter in parameters if parameter.kind != "value"}
    for name in (*plan.tolerances, *plan.excluded):
        if name not in buffers:
            raise _no_buffer(function, buffers, name)
    for name in plan.tolerances:
        if "float" not in buffers[name]:
            raise CompileError(
                f"{function}: argument '{name}': expected floats where there is a tolerance, got {buffers[name]}; "
                "compare it byte for byte"
            )


def _difference(
    parameters: Sequence[Parameter], expected: Mapping[str, Any], got: Mapping[str, Any], plan: Plan
) -> str:
    """The first differing buffer and element; empty if all are equal."""
    for parameter in parameters:
        name = parameter.name
        one, other = _array(expected[name]), _array(got[name])
        if one is None or other is None or name in plan.excluded:
            continue
        tolerance = plan.tolerances.get(name)
        if tolerance:
            one, other = _floats(one, parameter), _floats(other, parameter)
            unequal = ~np.isclose(other, one, rtol=tolerance[0], atol=tolerance[1], equal_nan=True).reshape(-1)
        else:
            raw, raw_other = (a.reshape(-1).view(np.uint8).reshape(a.size, a.itemsize) for a in (one, other))
            unequal = (raw != raw_other).any(axis=1)
        wrong = np.flatnonzero(unequal)
        if wrong.size:
            where = ", ".join(map(str, np.unravel_index(int(wrong[0]), one.shape)))
            first, second = one.reshape(-1)[wrong[0]], other.reshape(-1)[wrong[0]]
            within = f" within rtol {tolerance[0]:g} and atol {tolerance[1]:g}" if tolerance else ""
            return (
                f"{name}[{where}]: expected {first!r} as on the CPU path{within}, got {second!r}; "
                f"{wrong.size} of {one.size} differ"
            )
    return ""


def _floats(array: Array, parameter: Parameter) -> Array:
    """Numbers to compare; bfloat16 is converted from its bits."""
    if parameter.type != "bfloat16":
        return array
    return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _array(value: Any) -> Array | None:
    held = value.array if isinstance(value, Host) else value
    return held if isinstance(held, np.ndarray) else None
