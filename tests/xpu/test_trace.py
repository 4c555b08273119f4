"""The timeline of launches, and the lines that no core ran."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter

import pytest

from specdec_hal.cli import main

KERNEL = """\
#include "xpu/kernel/cluster.h"

__global__ void halves(const int* x, int* y, int wait) {
  __shared__ int shared[4];
  int mine[16];
  GM2LM_ASYNC(x + 16 * core_id(), mine, sizeof(mine));
  if (core_id() == 1) {
    mfence_gm();
  }
  mfence_lm();
  shared[core_id()] = mine[0];
  mfence_sm();
  if (core_id() == 0 || wait != 7) {
    sync_cluster();
  } else {
    for (;;) {
      sync_local();
    }
  }
  if (core_id() == 0) {
    SM2GM(shared, y + 4 * cluster_id(), sizeof(shared));
  }
}
"""
HOST = """\
#include <cstdlib>
#include "xpu_sim/host.h"
void halves(const int* x, int* y, int wait);
int main(int argc, char** argv) {
  int* x = xpu_sim::gm_alloc<int>(64, "x");
  int* y = xpu_sim::gm_alloc<int>(8, "y");
  halves<<<2, std::atoi(argv[1])>>>(x, y, argc);
  halves<<<1, 2>>>(x, y, argc);
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("halves")
    (folder / "halves.xpu").write_text(KERNEL)
    (folder / "host.cpp").write_text(HOST)
    return folder


@pytest.fixture
def program(folder, monkeypatch):
    """The timeline of a run. A program of each mode is compiled once, the fast one with coverage."""
    monkeypatch.chdir(folder)

    def run(cores: int, *options: str, mode: str = "fast") -> list[dict]:
        coverage = ["--coverage"] if mode == "fast" else []
        if not (folder / mode).exists():
            assert main(["xpu", "cc", *coverage, "--mode", mode, "halves.xpu", "host.cpp", "-o", mode]) == 0
        variables = {"XPU_SIM_TRACE": "out.json", "XPU_SIM": ",".join(("profile=portable", *options))}
        done = subprocess.run(
            [f"./{mode}", str(cores)], env={**os.environ, **variables}, capture_output=True, text=True, check=False
        )
        assert done.returncode in (0, 1), done.stderr
        return json.loads((folder / "out.json").read_text())["traceEvents"]

    return run


def of(events: list[dict], launch: int, cluster: int, core: int) -> list[tuple[str, str]]:
    """Phase and name of a core's events in the order of their times, without the whole of it."""
    name = next(
        event["pid"]
        for event in events
        if event["name"] == "process_name" and event["args"]["name"] == f"launch {launch} halves, cluster {cluster}"
    )
    own = [event for event in events if event["pid"] == name and event.get("tid") == core + 1 and event["ph"] != "M"]
    own.sort(key=lambda event: event["ts"])
    return [(event["ph"], event["name"]) for event in own if event["name"] != f"core {core}"]


@pytest.mark.parametrize("options", ["dma=eager", "dma=deferred", "dma=random,seed=3"])
def test_a_timeline(program, options):
    events = program(4, options)
    for cluster in range(2):
        assert of(events, 0, cluster, 0) == [
            ("X", "GM2LM_ASYNC"), ("b", "GM2LM 64 B"), ("X", "mfence_lm"), ("e", "GM2LM 64 B"), ("X", "mfence_sm"),
            ("X", "barrier"), ("X", "SM2GM"),
        ]  # fmt: skip
        # The fence of GM does not end the copy.
        assert of(events, 0, cluster, 1)[2:4] == [("X", "mfence_gm"), ("X", "mfence_lm")]
    assert len(of(events, 1, 0, 1)) == 7
    clusters = [event for event in events if event["ph"] == "X" and event["tid"] == 0]
    assert [event["name"] for event in clusters] == ["halves"] * 3
    # Clusters run at the same time, launches one after the other.
    assert clusters[0]["ts"] == clusters[1]["ts"] == 0 and clusters[2]["ts"] > clusters[1]["dur"]


def test_cores_leave_a_barrier_together(program):
    events = program(4)
    barriers = [event for event in events if event["name"] == "barrier" and event["pid"] == 1]
    assert len(barriers) == 4
    assert len({event["ts"] + event["dur"] for event in barriers}) == 1
    # Core 1, with a fence more, comes last and waits least.
    assert min(barriers, key=lambda event: event["dur"])["tid"] == 2
    assert {event["args"]["at"] for event in barriers} == {"halves.xpu:14"}


def test_a_copy_in_flight_ends_once(program):
    events = program(4, "dma=deferred")
    flights = Counter((event["id"], event["ph"]) for event in events if event["ph"] in "be")
    assert set(flights.values()) == {1} and len(flights) == 2 * (2 * 4 + 2)


def test_findings_are_on_it(program):
    events = program(8, "dma=eager")  # shared has 4 elements, x has 64
    marks = [event for event in events if event["ph"] == "i"]
    assert {event["name"] for event in marks} == {"gm_out_of_bounds"}
    assert marks[0]["args"]["what"].startswith("halves.xpu:6: GM2LM of 64 bytes")


def test_loads_and_stores_take_time_in_the_strict_build(program):
    fast, strict = (
        sum(event["dur"] for event in program(2, mode=mode) if event["name"] == "core 0") for mode in ("fast", "strict")
    )
    assert strict > fast


def test_lines_that_no_core_ran(program, folder, capsys):
    for counts in (folder / "fast.coverage").glob("*.gcda"):
        counts.unlink()
    assert main(["xpu", "coverage", "fast"]) == 2
    assert "found none; use xpu cc --coverage, then run the program" in capsys.readouterr().err
    program(1)
    assert main(["xpu", "coverage", "fast"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("halves.xpu: ")
    assert [line.strip() for line in lines[1:]] == ["17: sync_local();"]
    # Also of a program with findings, which ends before its time.
    events = program(8)
    assert main(["xpu", "coverage", "fast", "--json"]) == 0
    assert events and json.loads(capsys.readouterr().out)["files"][0]["missed"]
