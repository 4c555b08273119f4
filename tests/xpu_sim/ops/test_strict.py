"""No op does what only the device would punish: every check of the emulator, under twenty schedules."""

from __future__ import annotations

from itertools import islice

import pytest

from specdec_hal.backends.xpu_sim.backend import XpuSimBackend
from specdec_hal.backends.xpu_sim.options import PROFILES, Options
from specdec_hal.conformance.inputs.generate import cases, generate, hostile
from specdec_hal.ops import OPS
from tests.support.running import assert_same, run, searched

SHAPES = [("auto", "auto"), (2, 3), (1, 64), (12, 16)]
"""Launches: clusters and cores, in turn."""


@pytest.mark.parametrize("make", [generate, hostile])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("profile", PROFILES)
def test_twenty_schedules(op, make, profile):
    inputs_of = cases(op, 40)
    for seed in range(20):
        clusters, cores = SHAPES[seed % len(SHAPES)]
        dma = "random" if seed % 5 == 4 else "deferred"
        backend = XpuSimBackend(Options("strict", clusters, cores, seed, dma, profile=profile))
        for options in islice(inputs_of, 2):
            inputs = make(op, workspace=backend.workspace, **options)
            assert_same(run(op, inputs, backend), searched(op, inputs), (options, backend.options))
