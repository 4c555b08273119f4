"""No op depends on what is not known of the device: clean, and the reference's bits, with every flag the other way."""

from __future__ import annotations

from itertools import islice

import pytest

from specdec_hal.backends.xpu_sim.backend import XpuSimBackend
from specdec_hal.backends.xpu_sim.options import MODEL, Options
from specdec_hal.conformance.inputs.generate import cases, generate, hostile
from specdec_hal.ops import OPS
from tests.support.running import assert_same, run, searched

OTHERWISE = {
    "exit_counts_as_arrival": [False], "barrier_is_fence": [True], "dma_fifo": [True], "sync_drains_all_kinds": [True],
    "lm_fence_frees_source": [False], "sync_store_is_visible": [False], "store_to_dma_needs_fence": [False],
    "differing_barriers_diverge": [False], "nested_atomics_trap": [False], "scalar_gm_is_coherent": [False],
    "equal_stores_conflict": [False], "masked_stores_write_zero": [False], "gsm_stack_bytes": [1, 8192, 32768],
}  # fmt: skip
READINGS = [{flag: value} for flag, values in OTHERWISE.items() for value in values]
LAUNCHES = [("auto", "auto", "deferred"), (12, 16, "random"), (2, 3, "deferred")]
"""Clusters, cores and the timing of copies."""


@pytest.mark.parametrize("op", OPS)
def test_every_reading_of_the_device(op):
    inputs_of = cases(op, 3 * len(READINGS) * len(LAUNCHES))
    for model in READINGS:
        for seed, (clusters, cores, dma) in enumerate(LAUNCHES):
            backend = XpuSimBackend(Options("strict", clusters, cores, seed, dma, model=model))
            for number, options in enumerate(islice(inputs_of, 3)):
                make = hostile if number == 1 else generate
                inputs = make(op, workspace=backend.workspace, **options)
                assert_same(run(op, inputs, backend), searched(op, inputs), (options, backend.options))


def test_no_flag_is_left_out():
    assert OTHERWISE.keys() == MODEL.keys()
