"""The built-in backends at level quick."""

from __future__ import annotations

from functools import cache

import pytest

from specdec_hal.plugin import registry
from specdec_hal_conformance.report import PASSED, REFUSED, Report
from specdec_hal_conformance.rules import coverage
from specdec_hal_conformance.subject import Subject
from specdec_hal_conformance.suite import LEVELS, Level, Settings, Unit, run_unit, units

SAMPLES = {"reference": 4096}
"""The distribution tests' full number takes NumPy minutes; so few show a total variation of 0.08."""
FEWER = Level(generated=25, hostile=15, traces=12)
"""The fast part of level quick; `make conformance` runs all of it, `tests/wheel` that of three ops."""


@cache
def subject(backend: str) -> Subject:
    return Subject(registry.get_backend(backend))


def assert_passes(results: list) -> None:
    wrong = [f"{result.id}: {result.status}: {result.detail}" for result in results if result.status != PASSED]
    assert results and not wrong, "\n".join(wrong)


@pytest.mark.parametrize("unit", units(), ids=str)
# Of xpu_sim, tests/xpu/ops/test_generated.py runs more in any case.
@pytest.mark.parametrize("backend", ["reference", "cpu", pytest.param("xpu_sim", marks=pytest.mark.slow)])
def test_quick(backend: str, unit: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    if backend == "xpu_sim":
        pytest.importorskip("specdec_hal_xpu", reason="the emulator is a part that is not in this tree")
    monkeypatch.setitem(LEVELS, "quick", FEWER)  # type: ignore[arg-type]
    settings = Settings(shrink=False)
    settings.samples = SAMPLES.get(backend, settings.samples)
    assert_passes(list(run_unit(subject(backend), unit, settings)))


@pytest.mark.gpu
def test_cuda() -> None:
    """Where there is a GPU; one test, as the device is one."""
    found = [info for info in registry.backends() if info.name == "cuda"]
    if not found or not found[0].available:
        pytest.skip(f"no CUDA backend here: {found[0].reason if found else 'none is registered'}")
    results = [result for unit in units() for result in run_unit(subject("cuda"), unit, Settings())]
    assert_passes([result for result in results if result.status != REFUSED])


def test_every_rule_has_a_named_case() -> None:
    """The edges touch every rule except those of other groups."""
    report = Report("cpu", "cpu", "quick", 0)
    for unit in units():
        if unit.group == "edges":
            report.results += run_unit(subject("cpu"), unit, Settings())
    others = {"refusal", "replay", "any-value", "random", "sizes"}
    assert set(coverage(report).untouched) == {f"conventions#{rule}" for rule in others}


def test_other_seeds_give_other_cases() -> None:
    from specdec_hal_conformance.generated import drawn_cases

    first, again, other = ([case.note for case in drawn_cases("ngram_match", "generated", 30, s)] for s in (1, 1, 2))
    assert first == again and len(first) == 30
    assert first != other
