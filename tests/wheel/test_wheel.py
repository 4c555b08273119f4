"""What users get: the wheel works in a clean environment, far from the checkout."""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from specdec_hal.backends.cuda.probe import Build
from specdec_hal.ops import OPS
from tests.support.environments import Environment
from tests.support.scripts import script
from tests.support.sessions import run_sessions
from tests.xpu.program import MODES, PAIRS

ROOT = Path(__file__).parents[2]
CUDA_LIBRARY = "specdec_hal/lib/libspecdec_cuda.so"
BUILT_FOR = ((8, 0), (8, 6), (9, 0), (10, 0), (12, 0))
SERVED = (*BUILT_FOR, (8, 7), (8, 9), (10, 3), (11, 0), (12, 1), (13, 0))

HOST = (
    f"""\
#include "{PAIRS["race"].path}"
#include "xpu_sim/host.h"
"""
    + """
int main(int argc, char**) {
  int* in = xpu_sim::gm_alloc<int>(64);
  int* out = xpu_sim::gm_alloc<int>(64);
  for (int i = 0; i < 64; ++i) in[i] = i;
  if (argc > 1) {
    race<false><<<1, 4>>>(in, out, 64, nullptr);
  } else {
    race<true><<<1, 4>>>(in, out, 64, nullptr);
  }
}
"""
)


@pytest.fixture(scope="module")
def cuda_library(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        if CUDA_LIBRARY not in archive.namelist() and shutil.which("nvcc") is None:
            pytest.skip("the wheel has no CUDA library: there is no nvcc here")
        archive.extract(CUDA_LIBRARY, folder)
        archive.extract(CUDA_LIBRARY.replace(".so", ".json"), folder)
    return folder / CUDA_LIBRARY


def test_the_cuda_library_serves_every_device_that_is_supported(cuda_library: Path) -> None:
    build = Build.read(cuda_library)
    if len(build.binaries) == 1:
        pytest.skip("the wheel is for one device (WHEEL_ARCHS)")
    assert build.binaries == BUILT_FOR and build.ptx == (9, 0)
    assert all(build.runs_on(capability) for capability in SERVED)
    assert not build.runs_on((7, 5))


def test_the_cuda_library_needs_no_cuda_installation(cuda_library: Path) -> None:
    """The runtime is inside. It opens the driver by name when the first op runs; nothing else may be mentioned."""
    needed = set(re.findall(rb"lib(cuda|cudart|nvrtc)[.\w]*\.so[.\d]*", cuda_library.read_bytes()))
    assert needed == {b"cuda"}


def test_the_wheel_has_its_licences(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        fields = HeaderParser().parsestr(archive.read(metadata).decode())
    licences = {name.rpartition("/")[2] for name in names if ".dist-info/licenses/" in name}
    assert licences == {"LICENSE", "THIRD_PARTY_LICENSES.txt"} == set(fields.get_all("License-File"))
    assert fields["Version"] == script("tools/version.py").version()


def test_explain_every_op(installed: Environment) -> None:
    code = f"from specdec_hal.cli import main; print(*(main(['explain', op]) for op in {list(OPS)}))"
    shown = installed.output("python", "-c", code)
    assert all(op in shown for op in OPS) and shown.splitlines()[-1] == " ".join("0" for _ in OPS)


def test_backends(installed: Environment, wheel: Path) -> None:
    document = json.loads(installed.output("specdec-hal", "backends", "--json"))
    backends = {backend["name"]: backend for backend in document["backends"]}
    assert document["plugin_errors"] == [] and set(backends) == {"reference", "cpu", "xpu_sim", "cuda"}
    assert all(backends[name]["available"] for name in ("reference", "cpu", "xpu_sim"))
    with zipfile.ZipFile(wheel) as archive:
        has_library = CUDA_LIBRARY in archive.namelist()
    assert ("is not installed" not in backends["cuda"]["reason"]) == has_library


@pytest.mark.parametrize("backend", ["cpu", "xpu_sim"])
def test_conformance(installed: Environment, backend: str) -> None:
    ops = ("--op", "prepare_inputs", "--op", "ngram_match", "--op", "sample_target")
    command = ("conformance", "--backend", backend, "--level", "quick", "--coverage", "--json", *ops)
    document = json.loads(installed.output("specdec-hal", *command))
    assert document["ok"] and document["totals"]["passed"] > 1000 and document["totals"]["failed"] == 0


@pytest.mark.parametrize("mode", MODES)
def test_xpu_cc(installed: Environment, mode: str) -> None:
    (installed.work / "host.xpu").write_text(HOST)
    installed.output("specdec-hal", "xpu", "cc", "--mode", mode, "host.xpu", "-o", f"race_{mode}")
    good, bad = installed.run(f"./race_{mode}"), installed.run(f"./race_{mode}", "bad")
    assert (good.returncode, good.stderr) == (0, "")
    assert bad.returncode == (1 if mode == "strict" else 0), bad.stderr
    assert (": race: " in bad.stderr) == (mode == "strict")


def test_the_emulators_tutorial(installed: Environment) -> None:
    """Compiler, xpu test, timeline and pytest fixture, without any framework."""
    assert installed.run("python", "-c", "import paddle").returncode != 0
    page = (ROOT / "docs" / "extend" / "xpu_emulator.md").read_text()
    run_sessions(page, installed.work, lambda command: installed.run("bash", "-c", command))


def test_a_finding_of_the_backend_names_kernel_and_variable(installed: Environment) -> None:
    """Which stripped libraries could not."""
    for library in ("specdec_xpu_sim", "specdec_xpu_sim_strict"):
        symbols = installed.output("readelf", "-sW", installed.packages / "specdec_hal" / "lib" / f"lib{library}.so")
        assert ".symtab" in symbols and "sample_target_kernel" in symbols


@pytest.mark.parametrize(
    ("backend", "options"),
    [("cpu", {}), ("xpu_sim", {"backend.options.mode": "fast"}), ("xpu_sim", {"backend.options.mode": "strict"})],
)
def test_generate(installed_with_paddle: Environment, backend: str, options: dict[str, str]) -> None:
    options = {"backend.name": backend, "speculative.method": "ngram", **options}
    options["model.path"] = str(ROOT / "models" / "tiny-py-lm")
    words = [word for name, value in options.items() for word in ("--set", f"{name}={value}")]
    words += ["--prompt", "def add(a, b):", "--max-new-tokens", "6"]
    document = json.loads(installed_with_paddle.output("specdec-hal", "generate", "--json", *words))
    assert document["backend"] == backend and len(document["requests"][0]["token_ids"]) == 6
