"""Each unknown property of the device is a flag: with the other reading, other kernels are right."""

from __future__ import annotations

import pytest

from tests.xpu.program import BUILTIN_TESTS, MODES_ASAN_SLOW, PAIRS


@pytest.mark.parametrize(
    ("name", "good", "flag", "found"),
    [
        ("missing_fence", False, "barrier_is_fence=1", set()),
        ("missing_fence_lm", False, "store_to_dma_needs_fence=0", set()),
        ("missing_fence_sm", False, "store_to_dma_needs_fence=0", set()),
        ("barrier_divergence", False, "differing_barriers_diverge=0", set()),
        ("read_in_flight_chain", False, "dma_fifo=1", set()),
        ("read_in_flight_kinds", False, "sync_drains_all_kinds=1", set()),
        ("read_in_flight_kinds", False, "dma_fifo=1", set()),
        ("read_in_flight_order", False, "dma_fifo=1", set()),
        ("write_in_flight", True, "lm_fence_frees_source=0", {"write_in_flight"}),
    ],
)
def test_flag(pairs, name, good, flag, found):
    pair = PAIRS[name]
    result = pairs("strict")(*pair.launch(good), options=f"model.{flag}")
    assert result.checks == found, result.err
    if not good:
        assert pairs("strict")(*pair.launch()).checks == {pair.finds["strict"]}


def test_whether_a_synchronous_store_is_visible(builtins):
    assert "sm_copies" in BUILTIN_TESTS  # SM2GM by one core, a barrier, GM2LM by another
    result = builtins("strict")("sm_copies", options="model.sync_store_is_visible=0")
    assert result.checks == {"missing_fence"}, result.err


ORDERED = """\
#include <cstdio>
#include "xpu/kernel/cluster.h"
#include "xpu_sim/host.h"
__global__ void copies(int* gm, int* seen) {
  int a = 7, b = 0, c = 0;
  __shared__ int shared;
  mfence_lm();
  LM2GM_ASYNC(&a, gm, sizeof(int));
  GM2SM_ASYNC(gm, &shared, sizeof(int));
  GM2LM(gm, &b, sizeof(int));  // after both
  c = shared;
  LM2GM_ASYNC(&a, gm + 1, sizeof(int));
  GM2SM_ASYNC(gm + 1, &shared, sizeof(int));
  mfence_sm();  // the second, and so the first
  seen[0] = b;
  seen[1] = c;
  seen[2] = shared;
}
int main() {
  int* const gm = xpu_sim::gm_alloc<int>(2, "gm");
  int* const seen = xpu_sim::gm_alloc<int>(3, "seen");
  const int status = copies<<<1, 1>>>(gm, seen);
  std::printf("%d %d %d %d", status, seen[0], seen[1], seen[2]);
}
"""


@pytest.mark.parametrize("mode", MODES_ASAN_SLOW)
def test_copies_take_effect_in_the_order_of_issue(shared_folder, compiled, mode):
    source = shared_folder / f"ordered_{mode}.xpu"
    source.write_text(ORDERED)
    program = compiled("ordered", [source], mode)
    for dma in ("eager", "deferred", *(f"random,seed={seed}" for seed in range(1, 9))):
        result = program(options=f"model.dma_fifo=1,dma={dma}")
        assert (result.out, result.findings) == ("0 7 7 7", []), (dma, result.err)
    assert program(options="dma=deferred").out != "0 7 7 7"  # else this shows nothing


def test_halt_on_first(pairs):
    """Without it, what is no trap does not end the launch."""
    both = (*PAIRS["missing_fence"].launch(), *PAIRS["missing_fence_lm"].launch())
    assert len(pairs("strict")(*both).findings) == 2
    result = pairs("strict")(*both, options="halt_on_first=1")
    assert [finding["count"] for finding in result.findings] == [1, 1]


GOING_ON = """\
#include <cstdio>
#include "xpu/kernel/cluster.h"
#include "xpu_sim/host.h"
__global__ void stumbles(int* gm, int n) {
  __simd__ int tile[32];
  for (int i = 0; i < 32; ++i) tile[i] = i;
  GM2LM(gm, tile, n - 4);                     // no bytes
  GM2LM(gm + 60, tile, 8 * n);                // beyond the end
  int32x16_t v = vload_lm_int32x16(tile + 1);  // not aligned
  vstore_lm_int32x16(tile, v);
  mfence_lm();
  LM2GM(tile, gm, 64);
}
__global__ void shifts(int* gm, int n) {
  gm[0] = ~(-1 << n);
  gm[1] = 1 << 31 >> n;
}
int main(int argc, char**) {
  int* const gm = xpu_sim::gm_alloc<int>(64, "gm");
  const int status = argc > 1 ? shifts<<<1, 1>>>(gm, 4) : stumbles<<<1, 1>>>(gm, 4);
  std::printf("%d %d", status, gm[0]);
}
"""


@pytest.mark.parametrize("mode", MODES_ASAN_SLOW)
def test_keeping_going_and_notices(shared_folder, compiled, mode):
    source = shared_folder / f"going_on_{mode}.xpu"
    source.write_text(GOING_ON)
    program = compiled("going_on", [source], mode, flags=["-w"])
    traps = {"dma_len_zero", "gm_out_of_bounds", "simd_unalign"}
    result = program()
    assert result.out.startswith("2 ") and result.checks == {"dma_len_zero"}
    # What is wrong is left out, and the rest is done.
    result = program(options="keep_going=1")
    assert (result.out, result.checks & traps, result.status) == ("0 1", traps, 1), result.err
    # What comes after a copy that was left out says so; nothing is missing without one of no bytes.
    follows = {one["check"]: one["follows"] for one in result.findings}
    left_out = f"the skipped GM2LM of 32 bytes at {source}:8"
    assert follows["dma_len_zero"] == follows["gm_out_of_bounds"] == "" and follows["simd_unalign"] == left_out
    assert f"  may follow from: {left_out}\n" in result.err
    result = program("shifts")
    assert (result.out, result.status) == ("0 15", 0), result.err
    assert {one["severity"] for one in result.findings} == (set() if mode == "fast" else {"notice"})


SPINNING = """\
#include "xpu/kernel/cluster.h"
#include "xpu_sim/host.h"
__global__ void spins(int* out, int setter) {
  __shared__ volatile int ready;
  if (core_id() == 0) ready = 0;
  mfence_sm();
  sync_cluster();
  if (core_id() == setter) {
    ready = 1;
  } else {
    while (ready == 0) {
    }
  }
  out[core_id()] = ready;
}
int main() {
  int* const out = xpu_sim::gm_alloc<int>(4, "out");
  for (int setter = 0; setter < 4; ++setter) {
    if (spins<<<1, 4>>>(out, setter) != 0) return 9;
  }
}
"""


@pytest.mark.parametrize("mode", MODES_ASAN_SLOW)
def test_a_core_that_spins_lets_the_others_run(shared_folder, compiled, mode):
    """In any order the launch ends, and the strict build finds the fault under the flag each time."""
    source = shared_folder / f"spinning_{mode}.xpu"
    source.write_text(SPINNING)
    program = compiled("spinning", [source], mode)
    for seed in range(4 if mode == "strict" else 1):  # the others wait for the timer
        result = program(options=f"seed={seed},watchdog_seconds=2")
        assert (result.status, result.checks) == ((1, {"race"}) if mode == "strict" else (0, set())), result.err
