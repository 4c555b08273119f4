"""Each check has a kernel that must be flagged, and its repaired twin that must not: ../kernels/<name>_{bad,good}.xpu.

The head of a bad one says which build finds what; `launch` is clusters x cores.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.xpu_program import KERNELS, MODES, SOURCES, Program

SCHEDULES = (
    "seed=0",
    "seed=1,dma=deferred",
    "seed=2,dma=random",
    "seed=3,dma=random,model.dma_fifo=1",
    "seed=4,poison=165",
)
WITHOUT_LINE = {("gm_red_zone", "fast"), ("sm_budget", "*"), ("exception", "fast"), ("exception", "asan")}
"""Found beside the kernel's code: when it is loaded, when it has ended, or when it has been unwound."""


@dataclass(frozen=True)
class Kernel:
    path: Path
    clusters: int
    cores: int
    dma: str
    finds: dict[str, str]  # build: check

    @property
    def name(self) -> str:
        return self.path.stem


def read(path: Path) -> Kernel:
    head = dict(re.findall(r"^// (fast|asan|strict|launch|dma): (.*)$", path.read_text(), re.MULTILINE))
    clusters, cores = map(int, head["launch"].split("x"))
    finds = {mode: head[mode] for mode in MODES if mode in head}
    return Kernel(path, clusters, cores, head.get("dma", "eager"), finds)


ALL = {path.stem: read(path) for path in sorted(KERNELS.glob("*.xpu"))}
BAD = [kernel for name, kernel in ALL.items() if name.endswith("_bad")]
GOOD = [kernel for name, kernel in ALL.items() if name.endswith("_good")]


@pytest.fixture(scope="session")
def program(shared_folder, compiled):
    """program(mode): all kernels in one program, which runs those named."""

    def make(mode: str) -> Program:
        kernels = shared_folder / f"pairs_{mode}.xpu"
        main = shared_folder / f"pairs_{mode}.cpp"
        write(kernels, "".join(f'#include "{kernel.path}"\n' for kernel in ALL.values()))
        declared = "".join(f"void {name}(const int*, int*, int, const int*);\n" for name in ALL)
        entries = "".join(f'  {{"{name}", {name}}},\n' for name in ALL)
        write(
            main,
            f'#include "{SOURCES / "pairs_main.h"}"\n{declared}static const Entry kernels[] = {{\n{entries}}};\n'
            "int main(int argc, char** argv) { return run_pairs(kernels, argc, argv); }\n",
        )
        # What is wrong on purpose is what compilers warn about.
        return compiled("pairs", [kernels, main], mode, flags=["-Wno-error", "-w"])

    return make


def write(path: Path, text: str) -> None:
    if not path.is_file():
        path.write_text(text)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kernel", BAD, ids=lambda kernel: kernel.name)
def test_the_bad_one_is_flagged(program, kernel, mode):
    if mode not in kernel.finds:
        return
    check = kernel.finds[mode]
    for seed in (0, 5):
        options = f"seed={seed},dma={kernel.dma},watchdog_seconds=0.5"
        result = program(mode)(kernel.name, kernel.clusters, kernel.cores, options=options)
        assert check in result.checks, result.err
        others = result.checks - {check}
        assert not others or (mode == "asan" and others == {"undefined_behaviour"}), result.err  # a bound, seen twice
        assert result.status == 1
        finding = next(one for one in result.findings if one["check"] == check)
        assert finding["kernel"] == kernel.name
        assert f"seed={seed}" in finding["replay"]
        assert check in result.err
        if (check, mode) in WITHOUT_LINE or (check, "*") in WITHOUT_LINE:
            continue
        assert finding["cluster"] >= 0 and finding["core"] >= 0
        assert Path(finding["at"]["file"]).name == f"{kernel.name}.xpu", result.err
        assert 0 < finding["at"]["line"] <= len(kernel.path.read_text().splitlines())


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("mode", MODES)
def test_the_good_ones_are_not(program, mode, schedule):
    words = [word for kernel in GOOD for word in (kernel.name, kernel.clusters, kernel.cores)]
    result = program(mode)(*words, options=schedule)
    assert result.findings == [], result.err
    assert result.status == 0
    assert {one["kernel"] for one in result.kernels} == {kernel.name for kernel in GOOD}


def test_there_is_a_twin_for_each():
    assert {kernel.name[:-4] for kernel in BAD} == {kernel.name[:-5] for kernel in GOOD}
    assert not any(kernel.finds for kernel in GOOD)


def test_every_check_has_a_pair():
    table = (Path(__file__).parents[3] / "kernels_xpu_sim" / "sim" / "src" / "checks.h").read_text()
    checks = set(re.findall(r'^  check\(\w+, "(\w+)"', table, re.MULTILINE))
    assert checks - {check for kernel in BAD for check in kernel.finds.values()} == {"bad_launch"}  # test_host.py
