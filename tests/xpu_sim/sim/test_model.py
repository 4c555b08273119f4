"""What is not known of the device is one flag each: with the other reading, other kernels are right."""

from __future__ import annotations

import pytest

from tests.support.xpu_program import BUILTIN_TESTS, MODES, PAIRS


@pytest.mark.parametrize(
    ("name", "flag", "found"),
    [
        ("missing_fence_bad", "barrier_is_fence=1", set()),
        ("missing_fence_lm_bad", "store_to_dma_needs_fence=0", set()),
        ("missing_fence_sm_bad", "store_to_dma_needs_fence=0", set()),
        ("barrier_divergence_bad", "differing_barriers_diverge=0", set()),
        ("read_in_flight_chain_bad", "dma_fifo=1", set()),
        ("read_in_flight_kinds_bad", "sync_drains_all_kinds=1", set()),
        ("write_in_flight_good", "lm_fence_frees_source=0", {"write_in_flight"}),
    ],
)
def test_flag(pairs, name, flag, found):
    kernel = PAIRS[name]
    result = pairs("strict")(name, kernel.clusters, kernel.cores, options=f"model.{flag}")
    assert result.checks == found, result.err
    if name.endswith("_bad"):
        assert pairs("strict")(name, kernel.clusters, kernel.cores).checks == {kernel.finds["strict"]}


def test_whether_a_synchronous_store_is_visible(builtins):
    assert "sm_copies" in BUILTIN_TESTS  # SM2GM by one core, a barrier, GM2LM by another
    result = builtins("strict")("sm_copies", options="model.sync_store_is_visible=0")
    assert result.checks == {"missing_fence"}, result.err


@pytest.mark.parametrize("mode", MODES)
def test_what_a_masked_store_leaves(builtins, mode):
    assert builtins(mode)("loads_and_stores").status == 0  # zeros
    result = builtins(mode)("loads_and_stores", options="model.masked_stores_write_zero=0")
    assert result.out.startswith("loads_and_stores: line "), result.err


def test_halt_on_first(pairs):
    """Without it, what is no trap does not end the launch."""
    both = ("missing_fence_bad", 1, 4, "missing_fence_lm_bad", 1, 4)
    assert len(pairs("strict")(*both).findings) == 2
    result = pairs("strict")(*both, options="halt_on_first=1")
    assert [finding["count"] for finding in result.findings] == [1, 1]
