"""Every op of the simulated XPU gives the reference's bits, whatever schedule, timing of copies and launch."""

from __future__ import annotations

from functools import cache
from itertools import islice

import numpy as np
import pytest

from specdec_hal.backends.xpu_sim.backend import XpuSimBackend
from specdec_hal.backends.xpu_sim.options import Options
from specdec_hal.conformance.inputs.generate import cases, generate, hostile
from specdec_hal.ops import OPS, MatchPolicy
from tests.support.redzone import RedZones
from tests.support.running import BACKEND, assert_same, run, written

SCHEDULES = [(seed, dma) for seed in (0, 1, 2, 3, 4) for dma in ("eager", "deferred")] + [(5, "random")]
SHAPES = [("auto", "auto"), (1, 1), (1, 16), (3, 5), (12, 64), (255, 2)]
"""Launches: clusters and cores. All are used under every schedule."""
COUNT = 2  # cases per schedule and shape


@cache
def device(seed: int, dma: str, shape: tuple[int | str, int | str]) -> XpuSimBackend:
    return XpuSimBackend(Options(seed=seed, dma=dma, clusters=shape[0], cores=shape[1]))


@pytest.mark.parametrize("make", [generate, hostile])
@pytest.mark.parametrize("op", OPS)
def test_equal_to_the_reference(op, make):
    launches = [device(*schedule, shape) for schedule in SCHEDULES for shape in SHAPES]
    # A look-up goes round a whole table full of rubbish: small tables, and not on every launch.
    spoilt = op == "ngram_index_update" and make is hostile
    given = {"L": 8} if spoilt else {}
    inputs_of = iter(cases(op, len(launches) * COUNT))
    for backend in launches[:: 4 if spoilt else 1]:
        for options in islice(inputs_of, COUNT):
            inputs = make(op, workspace=backend.workspace, **{**options, **given})
            if make is generate and op == "ngram_index_update":
                inputs["index"][:] = 0
            expected = run(op, inputs)
            zones = RedZones(inputs)
            getattr(backend, op)(**zones.call)
            zones.check()
            assert_same(written(op, zones.call), expected, (options, backend.options))


HISTORY = ("token_ids_all", "prompt_lens", "step_idx", "seq_lens_encoder", "seq_lens_decoder")


@pytest.mark.parametrize("op", ["ngram_match", "hybrid_mtp_ngram"])
def test_an_index_changes_nothing(op):
    """An index kept by the kernels gives the drafts that the reference finds without one."""
    backend = device(3, "deferred", (2, 3))
    found = 0
    for options in cases(op, 80):
        inputs = generate(op, index=True, pre_ids=False, workspace=backend.workspace, **options)
        sizes = {name: inputs[name] for name in ("max_ngram_size", "min_ngram_size")}
        backend.ngram_index_reset(inputs["index"], np.ones(len(inputs["index"]), np.bool_))
        assert not inputs["index"].any()
        backend.ngram_index_update(inputs["index"], *(inputs[name] for name in HISTORY), **sizes)
        index = inputs.pop("index")
        for policy in MatchPolicy:
            call = {**inputs, "match_policy": policy}
            expected = run(op, call, BACKEND)
            actual = run(op, {**call, "index": index}, backend)
            actual.pop("index")
            assert_same(actual, expected, (options, policy))
            found += int((expected["draft_tokens"] != inputs["draft_tokens"]).any())
    assert found > 30
