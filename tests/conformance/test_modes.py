"""Edges in unlisted modes, tokens outside a vocabulary, and capabilities that match nothing."""

from __future__ import annotations

from typing import Any

import pytest

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.errors import PluginError
from specdec_hal.ops import MatchPolicy, Strategy
from specdec_hal.ops.validate import Call
from specdec_hal.plugin.backend import Capability
from specdec_hal_conformance.edges import edge_cases
from specdec_hal_conformance.expectations import unmet
from specdec_hal_conformance.rules import all_rules, full_id
from specdec_hal_conformance.subject import REFERENCE, Subject, reference_outputs
from specdec_hal_conformance.suite import Settings, Unit, run_unit


@pytest.mark.parametrize(
    ("op", "attribute", "modes"),
    [
        ("verify_draft_tokens", "strategy", list(Strategy)),
        ("ngram_match", "match_policy", list(MatchPolicy)),
        ("hybrid_mtp_ngram", "match_policy", list(MatchPolicy)),
    ],
)
def test_most_rules_have_an_edge_in_every_mode(op: str, attribute: str, modes: list[Any]) -> None:
    touched: dict[Any, set[str]] = {mode: set() for mode in modes}
    for case in edge_cases(op):
        inputs = case.make(REFERENCE.workspace)
        touched[inputs[attribute]] |= {full_id(op, rule) for rule in case.rules}
        if case.expected:
            assert unmet(case.expected, reference_outputs(op, inputs)) is None, case.name
    everywhere = set.intersection(*touched.values())
    somewhere = set.union(*touched.values())
    for rule in ("exact", "cleared", "silent", "end", "limit") if op.startswith("verify") else ("budget", "prefill"):
        name = full_id(op, rule)
        assert name not in all_rules([op]) or name in everywhere, name
    assert len(everywhere) > len(somewhere) / 2


class Outside(ReferenceBackend):
    """Draws an invalid token."""

    def plan(self, call: Call) -> Any:
        launch, arrays = super().plan(call), self.arrays(call)

        def run(stream: int) -> None:
            launch(stream)
            if call.op.name == "sample_target" and len(call.tensors["logits"]) > 40:
                arrays["target_tokens"][40] = 10**6  # type: ignore[index]

        return run


def test_a_token_outside_the_vocabulary_is_a_failure_with_its_inputs() -> None:
    results = list(run_unit(Subject(Outside()), Unit("sample_target", "statistics"), Settings(samples=2000)))
    assert [result.status for result in results] == ["failed"] * len(results) and len(results) == 2
    assert "1 of 2000 tokens outside a vocabulary of 5: 1000000 first, for seed 5, position 0" in results[0].detail
    assert "1000000 first, for seed 0, position 40" in results[1].detail


@pytest.mark.parametrize(
    ("op", "capability", "message"),
    [
        ("ngram_macth", Capability(), "capabilities name the op 'ngram_macth'; did you mean 'ngram_match'?"),
        ("ngram_match", Capability(attrs={"match_polcy": frozenset()}), "no attribute 'match_polcy'; did you mean"),
        ("ngram_match", Capability(attrs={"match_policy": {"LATST"}}), "LEFTMOST | LATEST, got 'LATST'"),
        ("ngram_match", Capability(attrs={"match_policy": frozenset()}), "got nothing"),
        ("sample_target", Capability(dtypes={"logit": frozenset({"float32"})}), "no tensor 'logit'; did you mean"),
        (
            "sample_target",
            Capability(dtypes={"logits": frozenset({"f32"})}),
            "logits: expected some of float32 | float16",
        ),
        ("sample_target", Capability(limits={"vocab": 3}), "no size 'vocab'; known: "),
    ],
)
def test_capabilities_that_match_nothing_are_refused(op: str, capability: Capability, message: str) -> None:
    backend = ReferenceBackend()
    backend.capabilities = {**backend.capabilities, op: capability}
    with pytest.raises(PluginError) as caught:
        Subject(backend)
    assert message in str(caught.value)
