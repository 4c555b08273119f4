"""Every op of the simulated XPU gives the reference's bits, whatever schedule, timing of copies and launch."""

from __future__ import annotations

from functools import cache
from itertools import islice

import pytest

from specdec_hal.backends.xpu_sim.backend import XpuSimBackend
from specdec_hal.backends.xpu_sim.options import Options
from specdec_hal.conformance.inputs.generate import cases, generate, hostile
from specdec_hal.ops import OPS
from tests.support.redzone import RedZones
from tests.support.running import assert_same, searched, written

SCHEDULES = [(seed, dma) for seed in (0, 1, 2) for dma in ("eager", "deferred")] + [(5, "random")]
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
    inputs_of = iter(cases(op, len(launches) * COUNT))
    for backend in launches:
        for options in islice(inputs_of, COUNT):
            inputs = make(op, workspace=backend.workspace, **options)
            expected = searched(op, inputs)
            zones = RedZones(inputs)
            getattr(backend, op)(**zones.call)
            zones.check()
            assert_same(written(op, zones.call), expected, (options, backend.options))
