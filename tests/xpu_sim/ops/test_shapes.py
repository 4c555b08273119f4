"""Nothing to do, and launches that do not suit the work: bit-equal to the reference, and clean in strict mode."""

from __future__ import annotations

from typing import Any

import pytest

from specdec_hal.backends.xpu_sim.backend import XpuSimBackend
from specdec_hal.backends.xpu_sim.options import Options
from specdec_hal.conformance.inputs.generate import generate
from specdec_hal.ops import OPS, get_op
from tests.support.redzone import RedZones
from tests.support.running import assert_same, searched, written

LAUNCHES = (
    Options(), Options(clusters=1, cores=1), Options(clusters=1, cores=16, seed=1, dma="random"),
    Options(clusters=1, cores=64, seed=2, dma="deferred"), Options(clusters=255, cores=1, seed=3, dma="deferred"),
    Options(clusters=255, cores=64, seed=4), Options(mode="strict", clusters=2, cores=16, seed=5, dma="deferred"),
)  # fmt: skip
EMPTY = (
    {"B": 0}, {"B": 0, "M": 1, "R_cap": 0, "T_cap": 0, "A_cap": 0, "D_cap": 0, "E": 0, "W": 0, "I_cap": 0},
    {"R_cap": 0}, {"T_cap": 0}, {"A_cap": 0}, {"D_cap": 0}, {"J": 0, "H": 0}, {"U": 0}, {"E": 0, "W": 0}, {"I_cap": 0},
)  # fmt: skip
SMALLEST = {"M": 1, "B": 1, "S": 1, "L": 1, "V": 1, "D": 1, "C": 1, "N": 1}


def inputs_of(op: str, backend: XpuSimBackend, seed: int, sizes: dict[str, int]) -> dict[str, Any]:
    # Without room for prompts nothing is in prefill.
    states = {"states": ("decode", "idle")} if sizes.get("I_cap") == 0 else {}
    return generate(op, seed, workspace=backend.workspace, **sizes, **states)


def check(op: str, backend: XpuSimBackend, inputs: dict[str, Any], context: object) -> None:
    zones = RedZones(inputs)
    getattr(backend, op)(**zones.call)
    zones.check()
    assert_same(written(op, zones.call), searched(op, inputs), (context, backend.options))


def symbols(op: str) -> set[str]:
    """The sizes that an op's tensors have."""
    return {dim.symbol or "" for operand in get_op(op).operands for dim in operand.tensor.dims}


@pytest.mark.parametrize("op", OPS)
def test_nothing_to_do(op):
    taken = symbols(op)
    sizes = [s for s in ({k: n for k, n in empty.items() if k in taken} for empty in EMPTY) if s]
    assert sizes or op == "ngram_index_reset"  # which has slots, at least one, and nothing else
    for seed, size in enumerate(sizes * 3):
        backend = XpuSimBackend(LAUNCHES[seed % len(LAUNCHES)])
        check(op, backend, inputs_of(op, backend, seed, size), size)


@pytest.mark.parametrize("options", LAUNCHES, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_launches(op, options):
    """The smallest sizes there are, and more slots and rows than some of the launches have cores."""
    backend = XpuSimBackend(options)
    check(op, backend, inputs_of(op, backend, 0, SMALLEST), "smallest")
    for seed in range(2):
        check(op, backend, inputs_of(op, backend, seed, {"M": 20, "B": 20 - seed}), seed)
