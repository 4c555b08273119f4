"""Every op gives the reference's bits on generated inputs, whatever schedule, timing, launch and model of a device."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import islice, product
from typing import Any

import pytest

from specdec_hal.ops import OPS, get_op
from specdec_hal.ops.inputs.generate import cases, generate, hostile
from specdec_hal_xpu.backend import XpuSimBackend
from specdec_hal_xpu.options import MODEL, PROFILES, Options
from tests.support.redzone import RedZones
from tests.support.running import assert_same, searched, written

EMPTY = (
    {"B": 0}, {"B": 0, "M": 1, "R_cap": 0, "T_cap": 0, "A_cap": 0, "D_cap": 0, "E": 0, "W": 0, "I_cap": 0},
    {"R_cap": 0}, {"T_cap": 0}, {"A_cap": 0}, {"D_cap": 0}, {"J": 0, "H": 0}, {"U": 0}, {"E": 0, "W": 0}, {"I_cap": 0},
)  # fmt: skip
SMALLEST = {"M": 1, "B": 1, "S": 1, "L": 1, "V": 1, "D": 1, "C": 1, "N": 1}
SCHEDULES = [(seed, dma) for seed in (0, 1, 2) for dma in ("eager", "deferred")] + [(5, "random")]
SHAPES = [("auto", "auto"), (1, 1), (1, 16), (3, 5), (12, 64), (255, 2)]
"""Launches: clusters and cores. All are used under every schedule."""
AWKWARD = (
    Options(), Options(clusters=1, cores=1), Options(clusters=1, cores=16, seed=1, dma="random"),
    Options(clusters=1, cores=64, seed=2, dma="deferred"), Options(clusters=255, cores=1, seed=3, dma="deferred"),
    Options(clusters=255, cores=64, seed=4), Options(mode="strict", clusters=2, cores=16, seed=5, dma="deferred"),
)  # fmt: skip
OTHERWISE = {
    "exit_counts_as_arrival": [False], "barrier_is_fence": [True], "dma_fifo": [True], "sync_drains_all_kinds": [True],
    "lm_fence_frees_source": [False], "sync_store_is_visible": [False], "store_to_dma_needs_fence": [False],
    "differing_barriers_diverge": [False], "nested_atomics_trap": [False], "scalar_gm_is_coherent": [False],
    "equal_stores_conflict": [False], "masked_stores_write_zero": [False], "gsm_stack_bytes": [1, 8192, 32768],
}  # fmt: skip
READINGS = [{flag: value} for flag, values in OTHERWISE.items() for value in values]


@cache
def device(*options: Any) -> XpuSimBackend:
    return XpuSimBackend(Options(*options))


def check(op: str, backend: XpuSimBackend, inputs: dict[str, Any], context: object) -> None:
    zones = RedZones(inputs)
    getattr(backend, op)(**zones.call)
    zones.check()
    assert_same(written(op, zones.call), searched(op, inputs), (context, backend.options))


def check_all(op: str, backends: Iterable[XpuSimBackend], makes: list[Any], count: int) -> None:
    """As many cases on each backend, made in turn."""
    inputs_of = iter(cases(op, 10_000))
    for backend in backends:
        for number, options in enumerate(islice(inputs_of, count)):
            make = makes[number % len(makes)]
            check(op, backend, make(op, workspace=backend.workspace, **options), options)


@pytest.mark.parametrize("make", [generate, hostile])
@pytest.mark.parametrize("op", OPS)
def test_schedules_and_launches(op, make):
    launches = [device("fast", *shape, *schedule) for schedule, shape in product(SCHEDULES, SHAPES)]
    check_all(op, launches, [make], 2)


@pytest.mark.parametrize("make", [generate, hostile])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("profile", PROFILES)
def test_clean_in_strict_mode(op, make, profile):
    """No op does what only the device would punish: every check of the emulator, under twenty schedules."""
    shapes = [("auto", "auto"), (2, 3), (1, 64), (12, 16)]
    timings = ["deferred", "deferred", "deferred", "deferred", "random"]
    launches = (
        XpuSimBackend(Options("strict", *shapes[seed % 4], seed, timings[seed % 5], profile=profile))
        for seed in range(20)
    )
    check_all(op, launches, [make], 2)


@pytest.mark.parametrize("op", OPS)
def test_every_reading_of_the_device(op):
    """No op depends on what is not known of the device: clean with every flag the other way."""
    assert OTHERWISE.keys() == MODEL.keys()
    shapes = [("auto", "auto", 0, "deferred"), (12, 16, 1, "random"), (2, 3, 2, "deferred")]
    launches = (XpuSimBackend(Options("strict", *shape, model=model)) for model, shape in product(READINGS, shapes))
    check_all(op, launches, [generate, hostile, generate], 3)


def inputs_of(op: str, backend: XpuSimBackend, seed: int, sizes: dict[str, int]) -> dict[str, Any]:
    # Without room for prompts nothing is in prefill.
    states = {"states": ("decode", "idle")} if sizes.get("I_cap") == 0 else {}
    return generate(op, seed, workspace=backend.workspace, **sizes, **states)


@pytest.mark.parametrize("op", OPS)
def test_nothing_to_do(op):
    taken = {dim.symbol or "" for operand in get_op(op).operands for dim in operand.tensor.dims}
    sizes = [s for s in ({k: n for k, n in empty.items() if k in taken} for empty in EMPTY) if s]
    assert sizes or op == "ngram_index_reset"  # which has slots, at least one, and nothing else
    for seed, size in enumerate(sizes * 3):
        backend = XpuSimBackend(AWKWARD[seed % len(AWKWARD)])
        check(op, backend, inputs_of(op, backend, seed, size), size)


@pytest.mark.parametrize("options", AWKWARD, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_awkward_launches(op, options):
    """The smallest sizes there are, and more slots and rows than some of the launches have cores."""
    backend = XpuSimBackend(options)
    check(op, backend, inputs_of(op, backend, 0, SMALLEST), "smallest")
    for seed in range(2):
        check(op, backend, inputs_of(op, backend, seed, {"M": 20, "B": 20 - seed}), seed)
