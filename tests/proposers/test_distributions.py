"""Whole decodes against the exact distribution: the joint one of three tokens, for each proposer and strategy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.config import parse
from specdec_hal.runner import Request, SamplingParams, build_runner
from specdec_hal_conformance.statistics import ALPHA, g_test
from tests.proposers.conftest import PROPOSERS, registry_with_draft_model, settings_of
from tests.support.joint import FILTERS, PROMPT, TARGET, joint
from tests.support.markov_model import MarkovModel

REQUESTS = 500
SLOTS = 250
DRAFT = np.log(np.array([[3, 3, 9, 1], [5, 2, 4, 5], [8, 4, 2, 2], [1, 7, 3, 5]]) / 16)


def decode(
    method: str, strategy: str, settings: dict[str, Any], requests: int = REQUESTS
) -> tuple[Any, dict[str, Any]]:
    """Counts of the first three tokens, and the runner's summary."""
    registry = registry_with_draft_model(lambda: MarkovModel(DRAFT))
    config = parse(
        {
            "runner": {"max_num_seqs": SLOTS, "prefill_chunk": len(PROMPT)},
            "speculative": {
                "method": method, "num_speculative_tokens": 3, "adaptive": False, "verify_strategy": strategy,
                **({method: settings} if settings else {}),
            },
        },
        registry=registry,
    )  # fmt: skip
    runner = build_runner(config, ReferenceBackend(), MarkovModel(TARGET, DRAFT), registry=registry)
    for seed in range(requests):
        runner.add_request(Request(str(seed), PROMPT, SamplingParams(max_new_tokens=5, seed=seed, **FILTERS)))
    counts = np.zeros((4, 4, 4))
    for output in runner.run().values():
        counts[tuple(output.token_ids[:3])] += 1
    return counts, runner.summary()


@pytest.mark.parametrize("strategy", ["target_match", "rejection"])
@pytest.mark.parametrize("method", PROPOSERS)
def test_three_tokens(method: str, strategy: str) -> None:
    counts, summary = decode(method, strategy, settings_of(method))
    assert counts.sum() == REQUESTS
    assert 0 < summary["acceptance_rate"] < 1
    assert g_test(counts, joint()) > ALPHA
