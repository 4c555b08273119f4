"""Careless use ends with a finding or a clear error in each build, never with a silent crash."""

from __future__ import annotations

import re
import subprocess

import pytest

from specdec_hal.cli import main
from tests.support.xpu_program import MODES

KERNELS = """\
#include "xpu/kernel/cluster.h"

static __device__ __attribute__((noinline)) int depth(volatile int* p, int n) {
  volatile int frame[64] = {n};
  return n < 0 ? *p : depth(frame, n + 1) + frame[1];
}

__global__ void recurse(int* gm, int n) {
  volatile int start = 0;
  const int deep = depth(&start, n);
  gm[core_id()] = deep;
}

__global__ void spin(int* gm, int n) {
  if (core_id() == 0) sync_cluster();
  while (core_id() == 2) mfence();
  if (core_id() == 3) return;
  sync_cluster();
  gm[core_id()] = n;
}

__global__ void throws(int* gm, int n) {
  if (core_id() == 1) throw n;
  gm[core_id()] = n;
}

__global__ void load(int* gm, int n) {
  int tile[16];
  GM2LM(gm, tile, sizeof(tile));
  mfence_lm();
  LM2GM(tile, gm + n, sizeof(tile));
}

__global__ void dereference(int* gm, int n) {
  gm[core_id()] = n;
}
"""
HOST = """\
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "xpu_sim/host.h"

void recurse(int*, int);
void spin(int*, int);
void throws(int*, int);
void load(int*, int);
void dereference(int*, int);

int main(int, char** argv) {
  static int host[64];
  int* const gm = xpu_sim::gm_alloc<int>(64, "gm");
  std::memset(gm, 0, 256);
  const char* const what = argv[1];
  const auto is = [what](const char* name) { return std::strcmp(what, name) == 0; };
  int status = -1;
  if (is("recurse")) status = recurse<<<1, 4>>>(gm, 1);
  if (is("spin")) status = spin<<<1, 5>>>(gm, 1);
  if (is("throws")) status = throws<<<1, 4>>>(gm, 1);
  if (is("launch")) status = load<<<std::atoi(argv[2]), std::atoi(argv[3])>>>(gm, 16);
  if (is("host")) status = load<<<1, 1>>>(host, 16);
  if (is("null")) status = load<<<1, 1>>>(nullptr, 16);
  if (is("null_dereferenced")) status = dereference<<<1, 1>>>(nullptr, 16);
  std::printf("status %d\\n", status);
  return 0;
}
"""


@pytest.fixture(scope="module", params=MODES)
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "kernels.xpu").write_text(KERNELS)
    (folder / "host.cpp").write_text(HOST)
    program = folder / "program"
    sources = [str(folder / "kernels.xpu"), str(folder / "host.cpp")]
    assert main(["xpu-cc", "--mode", request.param, *sources, "-o", str(program)]) == 0

    def go(*args: object) -> subprocess.CompletedProcess[str]:
        words = [str(program), *map(str, args)]
        options = {"XPU_SIM": "watchdog_seconds=0.3"}
        return subprocess.run(words, env=options, capture_output=True, text=True, check=False, timeout=60)

    return go


@pytest.mark.parametrize(
    ("case", "check", "lines", "words"),
    [
        ("recurse", "stack_overflow", {3, 4, 5}, "LM"),
        ("spin", "watchdog", {16}, "core 0: waits at "),
        ("throws", "exception", {23}, "kernels cannot throw"),
        ("host", "host_pointer", {29}, "allocate it by gm_alloc"),
        ("null", "null_pointer", {29}, "its GM source is a null pointer"),
        ("null_dereferenced", "null_pointer", {35}, "null pointer"),
    ],
)
def test_a_finding_and_no_crash(run, case, check, lines, words):
    done = run(case)
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert done.stdout == "status 2\n"
    found = re.search(rf"^\S*kernels\.xpu:(\d+): {check}: (.*)$", done.stderr, re.MULTILINE)
    assert found, done.stderr
    assert int(found[1]) in lines, done.stderr
    assert words in found[2]
    assert done.stderr.rstrip().endswith("xpu_sim: 1 finding")


def test_where_the_cores_are_when_one_spins(run):
    """Core 0 waits at one barrier, 1 and 4 at another, 2 spins, 3 has returned."""
    err = run("spin").stderr
    for words in (
        "core 0: waits at .*kernels.xpu:15",
        "core 1: waits at .*kernels.xpu:18",
        "core 2: running",
        "core 3: returned",
        "core 4: waits at .*kernels.xpu:18",
    ):
        assert re.search(words, err), err


@pytest.mark.parametrize(
    ("clusters", "cores", "message"),
    [
        (0, 64, "expected 1 to 255 clusters, got 0"),
        (256, 64, "expected 1 to 255 clusters, got 256"),
        (-1, 64, "expected 1 to 255 clusters, got -1"),
        (12, 0, "expected 1 to 64 cores, got 0"),
        (12, 65, "expected 1 to 64 cores, got 65"),
    ],
)
def test_launches_that_no_device_takes(run, clusters, cores, message):
    done = run("launch", clusters, cores)
    assert (done.returncode, done.stdout) == (1, "status 1\n")
    assert f"load: bad_launch: {message}\n" in done.stderr
