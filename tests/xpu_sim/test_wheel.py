"""The emulator, its compiler and the backend work from a wheel, far from the checkout."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.support.xpu_program import KERNELS, MODES

ROOT = Path(__file__).parents[2]
HOST = """\
#include "xpu_sim/host.h"

void race_bad(const int*, int*, int, const int*);
void race_good(const int*, int*, int, const int*);

int main(int argc, char**) {
  int* in = xpu_sim::gm_alloc<int>(64);
  int* out = xpu_sim::gm_alloc<int>(64);
  for (int i = 0; i < 64; ++i) in[i] = i;
  if (argc > 1) {
    race_bad<<<1, 4>>>(in, out, 64, nullptr);
  } else {
    race_good<<<1, 4>>>(in, out, 64, nullptr);
  }
}
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """An environment with the wheel, and what it depends on from this one; run(*command) runs a command there."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    wheel = ["wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)]
    (ROOT / "build").mkdir(exist_ok=True)
    with open(ROOT / "build" / "wheel.lock", "w") as lock:  # workers share the build folder
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run([*pip, *wheel], check=True)
    venv.create(folder / "env", with_pip=False)
    (packages,) = (folder / "env" / "lib").glob("python3*/site-packages")
    # Listed here, they are found after the environment's own, and no hook of an editable install is run.
    (packages / "shared.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    python = folder / "env" / "bin" / "python"
    (built,) = folder.glob("*.whl")
    install = ["--python", str(python), "install", "-q", "--no-deps", "--no-index", str(built)]
    subprocess.run([*pip, *install], check=True)
    work = folder / "work"
    work.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PATH"] = f"{python.parent}:{environment['PATH']}"

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=work, env=environment, capture_output=True, text=True, check=False, timeout=300
        )

    where = run(str(python), "-c", "import specdec_hal; print(specdec_hal.__file__)").stdout
    assert where.startswith(str(packages))
    return run


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_xpu_cc(installed, mode):
    (Path(installed("pwd").stdout.strip()) / "host.cpp").write_text(HOST)
    kernels = [str(KERNELS / f"race_{kind}.xpu") for kind in ("good", "bad")]
    made = installed("specdec-hal", "xpu-cc", "--mode", mode, *kernels, "host.cpp", "-o", f"race_{mode}")
    assert made.returncode == 0, made.stderr
    good, bad = installed(f"./race_{mode}"), installed(f"./race_{mode}", "bad")
    assert (good.returncode, good.stderr) == (0, "")
    assert bad.returncode == (1 if mode == "strict" else 0), bad.stderr
    assert (": race: " in bad.stderr) == (mode == "strict")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fast", "strict"])
def test_generate(installed, mode):
    pytest.importorskip("paddle", reason="PaddlePaddle is not installed (pip install 'specdec-hal[paddle]')")
    options = {"backend.name": "xpu_sim", "backend.options.mode": mode, "speculative.method": "ngram"}
    options["model.path"] = str(ROOT / "models" / "tiny-py-lm")
    words = [word for name, value in options.items() for word in ("--set", f"{name}={value}")]
    done = installed("specdec-hal", "generate", "--json", *words, "--prompt", "def add(a, b):", "--max-new-tokens", "6")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["backend"] == "xpu_sim" and len(document["requests"][0]["token_ids"]) == 6


@pytest.mark.slow
def test_a_finding_of_the_backend_names_kernel_and_variable(installed):
    """Which stripped libraries could not."""
    code = (
        "from specdec_hal.native import library_path\nimport subprocess\n"
        "for name in ('specdec_xpu_sim', 'specdec_xpu_sim_strict'):\n"
        "    print(subprocess.run(['readelf', '-sW', library_path(name)], capture_output=True, text=True).stdout)\n"
    )
    symbols = installed("python", "-c", code).stdout
    assert symbols.count(".symtab") == 2 and "sample_target_kernel" in symbols
