"""docs/extend/kunlun.md: each unknown property has a flag and a probe, which distinguishes the flag's values."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from specdec_hal.cli import main
from specdec_hal_conformance import device_cases
from tests.support.sessions import run_here, run_sessions

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extend" / "kunlun.md").read_text()
PROBES = {path.stem: path for path in sorted((ROOT / "kernels_xpu_sim" / "probes").glob("*.xpu"))}
ROWS = {
    flag.removeprefix("model."): (default, right, otherwise)
    for flag, default, right, otherwise in re.findall(
        r"^\| .* \| `([\w.]+)` `?(\w+)`? \| (\w+) \| (\w+) \|$", PAGE, re.MULTILINE
    )
}
PORTABLE = ("--profile=portable",)  # no fence but the probes' own, as KUNLUN_FENCES unset leaves it
STRICT = "dma=deferred,halt_on_first=1,watchdog_seconds=1"


def flags() -> dict[str, str]:
    header = (ROOT / "kernels_xpu_sim" / "sim" / "include" / "xpu_sim" / "options.h").read_text()
    model = header[header.index("struct Model") : header.index("enum class GmAccess")]
    found = dict(re.findall(r"^  (?:bool|int) (\w+) = (\w+);", model, re.MULTILINE))
    return {name: {"true": "1", "false": "0"}.get(value, value) for name, value in found.items()}


def answer(program: Path, options: str) -> str:
    variables = {**os.environ, "XPU_SIM": options}
    return subprocess.run([str(program)], env=variables, capture_output=True, text=True, check=False).stdout


@pytest.fixture
def emulator(tmp_path):
    """The script's settings with xpu cc for a compiler."""
    return {
        **os.environ, "KUNLUN_OUT": str(tmp_path),
        "KUNLUN_CXX": f"{Path(sys.executable).parent / 'specdec-hal'} xpu cc", "KUNLUN_FLAGS": " ".join(PORTABLE),
        "KUNLUN_LIBS": "", "KUNLUN_EXPORTS": "--cxxflag=-rdynamic", "PYTHON": sys.executable,
    }  # fmt: skip


def run_kernels(variables, *names):
    command = [ROOT / "tools" / "kunlun_check.sh", "kernels", *names]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def test_every_flag_has_a_row_and_a_probe():
    assert flags()
    assert {name: row[0] for name, row in ROWS.items() if name != "dma"} == flags()
    assert set(PROBES) == {*flags(), "fix_mfence"}
    assert "Nothing of this project has run on a Kunlun device yet." in PAGE


@pytest.mark.parametrize("flag", flags())
def test_a_probe_tells_the_values_apart(tmp_path, flag):
    source, program = PROBES[flag], tmp_path / flag
    assert len(source.read_text().splitlines()) <= 20
    assert main(["xpu", "cc", *PORTABLE, "--cxxflag=-Werror", "--mode", "strict", str(source), "-o", str(program)]) == 0
    _, right, otherwise = ROWS[flag]
    said = answer(program, f"{STRICT},model.{flag}={right}")
    assert said == f"model.{flag}={right}: launch 50 was right\n"
    said = answer(program, f"{STRICT},model.{flag}={otherwise}")
    assert re.fullmatch(rf"model\.{flag}={otherwise}: launch 1 (ended early|was wrong)\n", said)


def test_the_probe_of_automatic_fences(tmp_path):
    program = tmp_path / "fix_mfence"
    assert main(["xpu", "cc", *PORTABLE, str(PROBES["fix_mfence"]), "-o", str(program)]) == 0
    assert answer(program, "dma=eager") == "dma=eager: launch 50 was right\n"
    assert answer(program, "dma=deferred") == "dma=deferred: launch 1 was wrong\n"


def test_the_session_of_the_page(tmp_path):
    """The page's own commands, in a clone."""
    (tmp_path / "kernels_xpu_sim").symlink_to(ROOT / "kernels_xpu_sim")
    run_sessions(PAGE, tmp_path, run_here(tmp_path))


@pytest.mark.slow  # compiles every kernel
def test_the_script_with_the_emulator_for_a_device(tmp_path, emulator):
    """Its logic: what answers, what hangs, what does not compile."""
    script = ROOT / "tools" / "kunlun_check.sh"
    away = {**os.environ, "XTDK_PATH": str(tmp_path)}
    done = subprocess.run([script], env=away, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "expected the vendor's compiler, found none; set XTDK_PATH or KUNLUN_CXX" in done.stderr
    variables = {
        **emulator,
        "KUNLUN_FENCES": "-DFENCES",
        "KUNLUN_SECONDS": "2",
        "XPU_SIM": "model.exit_counts_as_arrival=0,model.masked_stores_write_zero=0",
    }
    done = subprocess.run([script, "probes"], env=variables, capture_output=True, text=True, check=False)
    said = dict(line.split(": ")[0].split("=") for line in done.stdout.splitlines())
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(said) == len(PROBES)
    assert said["model.exit_counts_as_arrival"] == said["model.masked_stores_write_zero"] == "0"
    assert said["dma"] == "eager" and said["model.nested_atomics_trap"] == "1"


def test_the_script_runs_kernels_and_compares(tmp_path, emulator):
    """With the emulator for a device: what they must write comes from the reference."""
    cases, ops = tmp_path / "cases.bin", ("write_accepted", "clear_accept_num", "prepare_inputs")
    device_cases.main(["--out", str(cases), *(word for op in ops for word in ("--op", op))])
    done = run_kernels(emulator, "accepted_slots", "prepare_inputs", "no_such_kernel")
    assert set(done.stdout.splitlines()) == {
        f"no_such_kernel: does not compile; see {tmp_path}/no_such_kernel.log",
        *(f"{op}: 6 cases as expected" for op in ops),
    }, done.stderr
    assert done.returncode == 1

    # The last byte that prepare_inputs must write in its last case.
    data = cases.read_bytes()
    cases.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
    replay = subprocess.run([tmp_path / "replay", cases], capture_output=True, text=True, check=False)
    assert replay.stdout == (
        "prepare_inputs: case generated:5: 'num_tokens': byte 7 of 8 is 00, expected 01\n"
        "write_accepted: 6 cases as expected\nclear_accept_num: 6 cases as expected\n"
        "prepare_inputs: 5 cases as expected\n"
    )
    assert replay.returncode == 1
    cases.write_bytes(data[: len(data) // 2])
    replay = subprocess.run([tmp_path / "replay", cases], capture_output=True, text=True, check=False)
    assert (replay.returncode, replay.stderr) == (1, "replay: the file of cases ends early\n")


def test_a_probe_that_hangs_has_answered(tmp_path):
    compiler = tmp_path / "compiler"
    compiler.write_text(
        '#!/bin/sh\nfor out; do :; done\nprintf "#!/bin/sh\\nexec sleep 60\\n" > "$out"\nchmod +x "$out"\n'
    )
    compiler.chmod(0o755)
    variables = {"KUNLUN_OUT": str(tmp_path), "KUNLUN_CXX": str(compiler), "KUNLUN_SECONDS": "0.1"}
    command = [ROOT / "tools" / "kunlun_check.sh", "probes"]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    expected = {
        f"{'dma' if name == 'dma' else f'model.{name}'}={row[2]}: a launch did not end" for name, row in ROWS.items()
    }
    assert set(done.stdout.splitlines()) == expected, done.stdout + done.stderr
