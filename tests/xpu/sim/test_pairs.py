"""Each check has a kernel that must be flagged, name<false>, and its repaired twin that must not: name<true>.

They are in ../kernels, a file for each family. The comment before them says which builds find what, in which object;
`launch` is clusters x cores, 1 x 4 if left out. Lines are marked.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.xpu.program import MODES, PAIRS

SCHEDULES = (
    "seed=0", "seed=1,dma=deferred", "seed=2,dma=random", "seed=3,dma=random,model.dma_fifo=1", "seed=4,poison=165",
)  # fmt: skip
WITHOUT_LINE = {("gm_red_zone", "fast"), ("sm_budget", "*")}
"""Found beside the kernel's code: when it is loaded, or when it has ended."""
CONSEQUENCES = {("asan", "undefined_behaviour"), ("strict", "undefined_behaviour")}
"""An index out of bounds is seen twice by one build, and arithmetic with what was never written may overflow."""


@pytest.mark.parametrize(("name", "mode"), [(name, mode) for name, pair in PAIRS.items() for mode in pair.finds])
def test_the_bad_one_is_flagged(pairs, name, mode):
    pair = PAIRS[name]
    check = pair.finds[mode]
    for seed in (0, 5):
        options = f"seed={seed},dma={pair.dma},watchdog_seconds=0.2"
        result = pairs(mode)(*pair.launch(), options=options + flag(pair))
        assert check in result.checks, result.err
        assert {(mode, other) for other in result.checks - {check}} <= CONSEQUENCES, result.err
        # A race of values that differ may be seen first where they are equal by chance.
        finding = min((one for one in result.findings if one["check"] == check), key=severity_of)
        # A defect, or what depends on the model; the other builds know less of copies in flight.
        depends = pair.decides if mode == "strict" else finding["decides"].removeprefix("model.")
        assert finding["decides"] == (f"model.{depends}" if depends else "")
        assert finding["severity"] == ("depends" if depends else "defect")
        assert depends == "" or f"depends on model.{depends}\n" in result.err
        assert result.status == (3 if depends and not result.checks - {check} else 1)
        assert finding["kernel"] == pair.kernel()
        assert f"seed={seed}" in finding["replay"]
        if (check, mode) in WITHOUT_LINE or (check, "*") in WITHOUT_LINE:
            assert f"{pair.kernel()}: {check}: " in result.err
            continue
        check_place(pair, mode, seed, finding)
        assert f"{pair.path.name}:{finding['at']['line']}: {check}: {finding['message']}\n" in result.err
        assert f"in {pair.kernel()}, cluster {finding['cluster']}, core {finding['core']}" in result.err


def test_a_missing_fence_says_what_would_go_wrong(pairs):
    """Both accesses, and the order of them that does harm."""
    found = [pair for pair in PAIRS.values() if pair.finds.get("strict") == "missing_fence"]
    assert len(found) >= 8
    for pair in found:
        result = pairs("strict")(*pair.launch(), options=flag(pair)[1:])
        (finding, *_) = [one for one in result.findings if one["check"] == "missing_fence"]
        assert f"  breaks if: {finding['order']}\n" in result.err and finding["order"]
        # The store of a structure that a function returns is not seen.
        assert finding["other"] or pair.name == "missing_fence_struct"


def severity_of(finding):
    return ("defect", "depends", "notice").index(finding["severity"])


def flag(pair):
    return f",model.{pair.model}" if pair.model else ""


def check_place(pair, mode, seed, finding):
    """The finding names the place, the object and the other access, as far as this build can know."""
    _, clusters, cores = pair.launch()
    assert 0 <= finding["cluster"] < clusters and 0 <= finding["core"] < cores
    assert Path(finding["at"]["file"]).name == pair.path.name
    other = pair.lines("the other access")
    # Where two accesses meet, the order of the cores decides which comes second.
    assert finding["at"]["line"] in pair.lines("here") | (other if seed else set())
    if mode != "strict":
        return
    space, _, rest = pair.object.partition(" ")
    assert finding["space"] == space
    if rest:
        name, _, offset = rest.partition(" + ")
        assert finding["object"] == name
        assert seed or finding["offset"] == int(offset)
    if other:
        named = re.search(rf"{pair.path.name}:(\d+)", finding["other"])
        assert named and int(named[1]) in other | (pair.lines("here") if seed else set())


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("mode", MODES)
def test_the_good_ones_are_not(pairs, mode, schedule):
    words = [word for pair in PAIRS.values() for word in pair.launch(good=True)]
    result = pairs(mode)(*words, options=schedule)
    assert result.findings == [], result.err
    assert result.status == 0
    assert {one["kernel"] for one in result.kernels} == {pair.kernel(good=True) for pair in PAIRS.values()}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [name for name, pair in PAIRS.items() if pair.model])
def test_only_a_flag_of_the_model_makes_it_wrong(pairs, name, mode):
    pair = PAIRS[name]
    assert pairs(mode)(*pair.launch()).checks == set()
    for schedule in SCHEDULES:
        result = pairs(mode)(*pair.launch(good=True), options=schedule + flag(pair))
        assert result.findings == [], result.err


def test_every_check_has_a_pair():
    table = (Path(__file__).parents[3] / "kernels_xpu_sim" / "sim" / "src" / "checks.h").read_text()
    checks = set(re.findall(r'^  check\(\w+, "(\w+)"', table, re.MULTILINE))
    by_the_host = {"bad_launch", "freed_memory", "invalid_handle", "wrapper_type"}  # test_host.py
    assert checks - {check for pair in PAIRS.values() for check in pair.finds.values()} == by_the_host


def test_the_strict_build_finds_every_bad_one():
    assert [name for name, pair in PAIRS.items() if "strict" not in pair.finds] == [] and len(PAIRS) >= 60
