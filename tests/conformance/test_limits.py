"""A right backend with limits is not called wrong: what its capabilities rule out is not asked, only refused."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.errors import UnsupportedError
from specdec_hal.ops import OPS
from specdec_hal.plugin.backend import Backend
from specdec_hal_conformance import Result, checks, suite
from specdec_hal_conformance.generated import drawn_cases
from specdec_hal_conformance.report import FAILED, PASSED, REFUSED
from specdec_hal_conformance.subject import NotClaimed, Subject
from specdec_hal_conformance.suite import Level, Settings, Unit, run_unit
from specdec_hal_conformance.trial import Trial

INDEX_OPS = ("ngram_index_update", "ngram_index_reset")


def limited(symbol: str, limit: int, ops: tuple[str, ...] = tuple(OPS)) -> Backend:
    """The reference, which claims no larger `symbol` of these ops."""

    class Limited(ReferenceBackend):
        capabilities: ClassVar = {
            op: replace(has, limits={symbol: limit}) if op in ops and symbol in OPS[op].symbols else has
            for op, has in ReferenceBackend.capabilities.items()
        }

    return Limited()


def results(backend: Backend, op: str, *groups: str, samples: int = 64) -> list[Result]:
    settings = Settings(shrink=False, samples=samples)
    return [result for group in groups for result in run_unit(Subject(backend), Unit(op, group), settings)]


@pytest.fixture(autouse=True)
def few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "LEVELS", {"quick": Level(generated=24, hostile=4, traces=1)})


@pytest.mark.parametrize(("symbol", "limit"), [("M", 2), ("M", 1), ("S", 5), ("V", 7), ("L", 8)])
@pytest.mark.parametrize("op", ["verify_draft_tokens", "top_p_candidates", "ngram_match", *INDEX_OPS, "write_accepted"])
def test_a_limit_of_any_size(op, symbol, limit):
    """Independence padded the batch beyond the largest M."""
    if symbol not in OPS[op].symbols:
        pytest.skip("the op has no such size")
    found = results(limited(symbol, limit), op, "arguments", "generated", "hostile", "traces")
    assert [result for result in found if result.status == FAILED] == []
    assert {result.status for result in found} == {PASSED, REFUSED}


@pytest.mark.parametrize("op", OPS)
def test_two_slots_at_most(op):
    found = results(limited("M", 2) if "M" in OPS[op].symbols else ReferenceBackend(), op, "generated")
    assert [result for result in found if result.status == FAILED] == []


def test_a_batch_is_padded_as_far_as_the_backend_claims():
    """One slot more than the case's two finds a neighbour that leaks; two more are not claimed."""
    case = next(case for case in drawn_cases("clear_accept_num", "generated", 50, 0) if slots(case) == 2)

    class Leaks(type(limited("M", 3))):
        def plan(self, call):
            launch = super().plan(call)
            counts = self.arrays(call)["accept_num"]

            def run(stream):
                launch(stream)
                if len(counts) == 3:
                    counts[0] += 1

            return run

    assert checks.INDEPENDENCE(Trial(Subject(limited("M", 3)), case)) is None
    assert checks.INDEPENDENCE(Trial(Subject(Leaks()), case)).startswith("padded: slots [0, 1] of 2, M = 3")


def slots(case) -> int:
    return len(case.make(ReferenceBackend().workspace)["accept_num"])


@pytest.mark.parametrize("limits", [("M", 1), ("L", 8)], ids=str)
@pytest.mark.parametrize("ops", [("ngram_index_update",), ("ngram_index_reset",), ("ngram_match",)], ids=str)
def test_an_index_that_other_ops_do_not_claim(ops, limits):
    """Look-ups need an index that is reset and brought up to date, and that op's limits may be narrower."""
    for op in ("ngram_match", *INDEX_OPS):
        found = results(limited(*limits, ops), op, "edges", "generated", "wide")
        assert [result for result in found if result.status == FAILED] == []
        assert any(result.status == PASSED for result in found)


@pytest.mark.parametrize(("op", "symbol", "limit"), [("sample_target", "R_cap", 100), ("sample_target", "V", 8)])
def test_distributions_need_more_rows_than_are_claimed(op, symbol, limit):
    found = results(limited(symbol, limit), op, "statistics")
    assert [result for result in found if result.status == FAILED] == []
    assert any(result.status == REFUSED for result in found)


def test_refusing_what_is_claimed_is_still_wrong():
    class Refuses(ReferenceBackend):
        def plan(self, call):
            if call.op.name == "clear_accept_num" and call.symbols["M"] > 2:
                raise UnsupportedError("too many")
            return super().plan(call)

    found = results(Refuses(), "clear_accept_num", "generated")
    assert any(result.status == FAILED and "too many" in result.detail for result in found)


def test_what_is_not_claimed_is_said():
    subject = Subject(limited("M", 2, ("clear_accept_num",)))
    call = {"accept_num": np.zeros(3, np.int32), "seq_lens_decoder": np.zeros(3, np.int32)}
    with pytest.raises(NotClaimed, match=r"clear_accept_num: M = 3 \(largest: 2\)"):
        subject.run("clear_accept_num", call)
