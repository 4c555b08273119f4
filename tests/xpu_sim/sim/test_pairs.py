"""Each check has a kernel that must be flagged, <name>_bad, and its repaired twin that must not: <name>_good.

They are in ../kernels, a file for each family. The comment before a bad one says which build finds what, and in which
object; `launch` is clusters x cores. Lines are marked.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.xpu_program import MODES, PAIRS

SCHEDULES = (
    "seed=0", "seed=1,dma=deferred", "seed=2,dma=random", "seed=3,dma=random,model.dma_fifo=1", "seed=4,poison=165",
)  # fmt: skip
WITHOUT_LINE = {("gm_red_zone", "fast"), ("sm_budget", "*")}
"""Found beside the kernel's code: when it is loaded, or when it has ended."""
CONSEQUENCES = {("asan", "undefined_behaviour"), ("strict", "undefined_behaviour")}
"""An index out of bounds is seen twice by one build, and arithmetic with what was never written may overflow."""

BAD = [kernel for name, kernel in PAIRS.items() if name.endswith("_bad")]
GOOD = [kernel for name, kernel in PAIRS.items() if name.endswith("_good")]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kernel", BAD, ids=lambda kernel: kernel.name)
def test_the_bad_one_is_flagged(pairs, kernel, mode):
    if mode not in kernel.finds:
        return
    check = kernel.finds[mode]
    for seed in (0, 5):
        options = f"seed={seed},dma={kernel.dma},watchdog_seconds=0.2"
        result = pairs(mode)(kernel.name, kernel.clusters, kernel.cores, options=options + flag(kernel))
        assert check in result.checks, result.err
        assert {(mode, other) for other in result.checks - {check}} <= CONSEQUENCES, result.err
        # A race of values that differ may be seen first where they are equal by chance.
        finding = min((one for one in result.findings if one["check"] == check), key=severity_of)
        # A defect, or what depends on the model; the other builds know less of copies in flight.
        depends = kernel.decides if mode == "strict" else finding["decides"].removeprefix("model.")
        assert finding["decides"] == (f"model.{depends}" if depends else "")
        assert finding["severity"] == ("depends" if depends else "defect")
        assert depends == "" or f"depends on model.{depends}\n" in result.err
        assert result.status == (3 if depends and not result.checks - {check} else 1)
        assert finding["kernel"] == kernel.name
        assert f"seed={seed}" in finding["replay"]
        if (check, mode) in WITHOUT_LINE or (check, "*") in WITHOUT_LINE:
            assert f"{kernel.name}: {check}: " in result.err
            continue
        check_place(kernel, mode, seed, finding)
        assert f"{kernel.path.name}:{finding['at']['line']}: {check}: {finding['message']}\n" in result.err
        assert f"in {kernel.name}, cluster {finding['cluster']}, core {finding['core']}" in result.err


def test_a_missing_fence_says_what_would_go_wrong(pairs):
    """Both accesses, and the order of them that does harm."""
    kernels = [kernel for kernel in BAD if kernel.finds.get("strict") == "missing_fence"]
    assert len(kernels) >= 8
    for kernel in kernels:
        result = pairs("strict")(kernel.name, kernel.clusters, kernel.cores, options=flag(kernel)[1:])
        (finding, *_) = [one for one in result.findings if one["check"] == "missing_fence"]
        assert f"  breaks if: {finding['order']}\n" in result.err and finding["order"]
        # The store of a structure that a function returns is not seen.
        assert finding["other"] or kernel.name == "missing_fence_struct_bad"


def severity_of(finding):
    return ("defect", "depends", "notice").index(finding["severity"])


def flag(kernel):
    return f",model.{kernel.model}" if kernel.model else ""


def check_place(kernel, mode, seed, finding):
    """The finding names the place, the object and the other access, as far as this build can know."""
    assert 0 <= finding["cluster"] < kernel.clusters and 0 <= finding["core"] < kernel.cores
    assert Path(finding["at"]["file"]).name == kernel.path.name
    other = kernel.lines("the other access")
    # Where two accesses meet, the order of the cores decides which comes second.
    assert finding["at"]["line"] in kernel.lines("here") | (other if seed else set())
    if mode != "strict":
        return
    space, _, rest = kernel.object.partition(" ")
    assert finding["space"] == space
    if rest:
        name, _, offset = rest.partition(" + ")
        assert finding["object"] == name
        assert seed or finding["offset"] == int(offset)
    if other:
        named = re.search(rf"{kernel.path.name}:(\d+)", finding["other"])
        assert named and int(named[1]) in other | (kernel.lines("here") if seed else set())


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("mode", MODES)
def test_the_good_ones_are_not(pairs, mode, schedule):
    words = [word for kernel in GOOD for word in (kernel.name, kernel.clusters, kernel.cores)]
    result = pairs(mode)(*words, options=schedule)
    assert result.findings == [], result.err
    assert result.status == 0
    assert {one["kernel"] for one in result.kernels} == {kernel.name for kernel in GOOD}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kernel", [kernel for kernel in BAD if kernel.model], ids=lambda kernel: kernel.name)
def test_only_a_flag_of_the_model_makes_it_wrong(pairs, kernel, mode):
    assert pairs(mode)(kernel.name, kernel.clusters, kernel.cores).checks == set()
    good = PAIRS[f"{kernel.name[:-4]}_good"]
    for schedule in SCHEDULES:
        result = pairs(mode)(good.name, good.clusters, good.cores, options=schedule + flag(kernel))
        assert result.findings == [], result.err


def test_there_is_a_twin_for_each():
    assert len(BAD) >= 40
    assert {kernel.name[:-4] for kernel in BAD} == {kernel.name[:-5] for kernel in GOOD}
    assert not any(kernel.finds for kernel in GOOD)


def test_every_check_has_a_pair():
    table = (Path(__file__).parents[3] / "kernels_xpu_sim" / "sim" / "src" / "checks.h").read_text()
    checks = set(re.findall(r'^  check\(\w+, "(\w+)"', table, re.MULTILINE))
    assert checks - {check for kernel in BAD for check in kernel.finds.values()} == {"bad_launch"}  # test_host.py


def test_the_strict_build_finds_every_bad_one():
    assert [kernel.name for kernel in BAD if "strict" not in kernel.finds] == []
