"""Results as a table, JSON and JUnit."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

import specdec_hal

PASSED, FAILED, REFUSED, EXPECTED, UNEXPECTED = "passed", "failed", "refused", "expected failure", "unexpected pass"
STATUSES = (PASSED, FAILED, REFUSED, EXPECTED, UNEXPECTED)


@dataclass(frozen=True)
class Result:
    """One check of one case. `detail`: the fault, or the reason of a refusal or expectation. `rules` are full ids."""

    op: str
    mode: str
    case: str
    check: str
    status: str
    detail: str = ""
    rules: tuple[str, ...] = ()
    reproduction: str = ""
    seconds: float = 0.0

    @property
    def id(self) -> str:
        """The text that expected-failure patterns match: ``op/case::check [mode]``, mode if there is one."""
        return f"{self.op}/{self.case}::{self.check}" + (f" [{self.mode}]" if self.mode else "")


@dataclass(frozen=True)
class Cause:
    """Failures of one check of one op, and the rules most likely broken: (full id, failed, tested).

    `rules`: the three rules that fail in the largest share of their cases.
    """

    op: str
    check: str
    cases: int
    modes: tuple[str, ...]
    rules: tuple[tuple[str, int, int], ...]

    def __str__(self) -> str:
        modes = f" ({', '.join(filter(None, self.modes))})" if any(self.modes) else ""
        rules = ", ".join(f"{rule} ({wrong} of {asked})" for rule, wrong, asked in self.rules)
        return f"{self.op}{modes}: {self.cases} fail in '{self.check}'; {rules or 'no rule of its own'}"


@dataclass
class Report:
    """All results of one backend. `problems`: what fails the run besides results (stale expected failures).

    `rounds`: of a soak. `passed`: counts by (op, mode) of results that are not kept.
    """

    backend: str
    device: str
    level: str
    seed: int
    results: list[Result] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0
    rounds: int = 1
    passed: Counter[tuple[str, str]] = field(default_factory=Counter)

    def count_passed(self) -> None:
        """Only count results that passed, since a soak has many."""
        self.passed.update((r.op, r.mode) for r in self.results if r.status == PASSED)
        self.results = [r for r in self.results if r.status != PASSED]

    @property
    def ok(self) -> bool:
        """Whether the backend is what it claims to be."""
        return not self.problems and not any(r.status in (FAILED, UNEXPECTED) for r in self.results)

    @property
    def failures(self) -> list[Result]:
        """Failures and unexpected passes."""
        return [r for r in self.results if r.status in (FAILED, UNEXPECTED)]

    def causes(self) -> list[Cause]:
        """The failures by op and check, those with most cases first."""
        groups: dict[tuple[str, str], list[Result]] = {}
        for failure in self.failures:
            groups.setdefault((failure.op, failure.check), []).append(failure)
        causes = []
        for (op, check), wrong in groups.items():
            asked = Counter(
                rule for r in self.results if (r.op, r.check) == (op, check) and r.status != REFUSED for rule in r.rules
            )
            broken = Counter(rule for r in wrong for rule in r.rules if rule.startswith(f"{op}#"))
            rules = sorted(broken, key=lambda rule: (-broken[rule] / asked[rule], -broken[rule], rule))[:3]
            modes = tuple(dict.fromkeys(r.mode for r in wrong))
            causes.append(Cause(op, check, len(wrong), modes, tuple((r, broken[r], asked[r]) for r in rules)))
        return sorted(causes, key=lambda cause: -cause.cases)

    def table(self) -> dict[tuple[str, str], Counter[str]]:
        """Counts of statuses by (op, mode), in order of execution; ops without results have no row."""
        rows = {row: Counter({PASSED: count}) for row, count in self.passed.items()}
        for result in self.results:
            rows.setdefault((result.op, result.mode), Counter())[result.status] += 1
        return rows

    def reasons(self, op: str, mode: str) -> list[str]:
        """Why calls of that row were refused, each once."""
        return list(dict.fromkeys(r.detail for r in self.results if (r.op, r.mode, r.status) == (op, mode, REFUSED)))

    def totals(self) -> dict[str, int]:
        """Results by status."""
        counts = sum(self.table().values(), Counter[str]())
        return {status: counts[status] for status in STATUSES}

    def document(self) -> dict[str, Any]:
        """As JSON: everything but the passed results one by one."""
        return {
            "backend": self.backend,
            "device": self.device,
            "level": self.level,
            "seed": self.seed,
            "rounds": self.rounds,
            "ok": self.ok,
            "versions": versions(),
            "seconds": round(self.seconds, 2),
            "totals": self.totals(),
            "problems": self.problems,
            "table": [
                {"op": op, "mode": mode, **counts, "reasons": self.reasons(op, mode)}
                for (op, mode), counts in self.table().items()
            ],
            "causes": [asdict(cause) for cause in self.causes()],
            "results": [asdict(result) for result in self.results if result.status not in (PASSED, REFUSED)],
        }

    def junit(self) -> ElementTree.ElementTree[ElementTree.Element]:
        """As JUnit: a test case per op, mode and check; refused ones are skipped with the reason."""
        groups: dict[tuple[str, str, str], list[Result]] = {}
        for result in self.results:
            groups.setdefault((result.op, result.mode, result.check), []).append(result)
        suite = ElementTree.Element("testsuite", name=f"specdec_hal_conformance {self.backend}")
        failed = skipped = 0
        for (op, mode, check), results in groups.items():
            seconds = f"{sum(r.seconds for r in results):.3f}"
            element = ElementTree.SubElement(
                suite, "testcase", classname=f"{self.backend}.{op}", name=f"{check} {mode}".strip(), time=seconds
            )
            wrong = [r for r in results if r.status in (FAILED, UNEXPECTED)]
            if wrong:
                failed += 1
                failure = ElementTree.SubElement(element, "failure", message=f"{wrong[0].id}: {wrong[0].detail}")
                failure.text = "\n".join(f"{r.id}: {r.detail}\n{r.reproduction}" for r in wrong)
            elif all(r.status in (REFUSED, EXPECTED) for r in results):
                skipped += 1
                ElementTree.SubElement(element, "skipped", message=results[0].detail)
        for problem in self.problems:
            failed += 1
            element = ElementTree.SubElement(suite, "testcase", classname=self.backend, name="expected failures")
            ElementTree.SubElement(element, "failure", message=problem)
        suite.set("tests", str(len(suite)))
        suite.set("failures", str(failed))
        suite.set("skipped", str(skipped))
        suite.set("time", f"{self.seconds:.3f}")
        return ElementTree.ElementTree(suite)

    def write_junit(self, path: Path) -> None:
        """Write the JUnit file."""
        self.junit().write(path, encoding="utf-8", xml_declaration=True)


def versions() -> dict[str, str]:
    """Inputs of a reproduction."""
    return {"specdec_hal": specdec_hal.__version__, "numpy": np.__version__, "python": platform.python_version()}


def merged(reports: Iterable[Report]) -> Report:
    """Parts of one run as one report."""
    parts = list(reports)
    whole = Report(parts[0].backend, parts[0].device, parts[0].level, parts[0].seed)
    for part in parts:
        whole.results += part.results
        whole.problems += part.problems
    return whole
