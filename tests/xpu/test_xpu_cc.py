"""The command xpu cc: kernels and host programs in, programs and libraries out."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specdec_hal.cli import main

KERNEL = """\
#include "xpu/kernel/cluster.h"
#include "shape.h"

template <typename T, typename S>
__global__ void scale(T* x, int n, S by) {
  T tile[TILE];
  for (int i = core_id() * TILE; i < n; i += core_num() * TILE) {
    const int count = min(TILE, n - i);
    GM2LM(x + i, tile, count * sizeof(T));
    for (int k = 0; k < count; ++k) tile[k] = tile[k] * by;
#ifndef FORGET
    mfence_lm();
#endif
    LM2GM(tile, x + i, count * sizeof(T));
  }
}

int scale_all(float* x, int n, float by, long long clusters) {
  int32_t status = scale<float><<<clusters, 64, nullptr>>>(x, n, by);  // S follows from the call
  if (status != 0) return status;
  return scale<float, float><<<1, 64>>>(x, n, 2.0f);
}
"""
HOST = """\
#include <cstdio>
#include <cstdlib>

#include "xpu_sim/host.h"

int scale_all(float* x, int n, float by, long long clusters);

int main(int argc, char** argv) {
  float* x = xpu_sim::gm_alloc<float>(100, "x");
  for (int i = 0; i < 100; ++i) x[i] = i;
  const int status = scale_all(x, argc > 2 ? std::atoi(argv[2]) : 100, 3.0f, std::atoll(argv[1]));
  std::printf("%d %g\\n", status, x[99]);
  return 0;
}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "scale.xpu").write_text(KERNEL)
    (tmp_path / "host.cpp").write_text(HOST)
    (tmp_path / "headers").mkdir()
    (tmp_path / "headers" / "shape.h").write_text("constexpr int TILE = WIDTH;\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


# No fence but the kernel's own.
COMMAND = ["xpu", "cc", "--profile=portable", "-DWIDTH=16", "-I", "headers", "scale.xpu", "host.cpp", "-o", "scale"]


def run(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["./scale", *args], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("mode", ["fast", "asan", "strict"])
def test_a_program(folder, mode):
    assert main([*COMMAND, "--mode", mode]) == 0
    done = run("1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 594\n", "")
    # A finding, twice: as text, and in the exit status although main returns 0.
    done = run("1", "120")
    assert done.returncode == 1 and done.stdout.startswith("2 ")
    assert done.stderr.startswith(
        "scale.xpu:9: gm_out_of_bounds: GM2LM of 64 bytes: bytes 384 to 447 of x, which has 400\n"
    )
    assert done.stderr.endswith("xpu_sim: 1 finding\n")
    assert "replay with: seed=5,dma=deferred" in run("1", "120", XPU_SIM="seed=5,dma=deferred").stderr
    assert "expected 1 to 255 clusters, got 256" in run("256").stderr
    assert "expected 1 to 255 clusters, got -1" in run("-4294967295").stderr  # no int


def test_checks_are_those_of_the_mode(folder):
    assert main([*COMMAND, "-DFORGET"]) == 0
    assert run("1").returncode == 0
    assert main([*COMMAND, "-DFORGET", "--mode", "strict"]) == 0
    done = run("1")
    assert done.returncode == 3
    assert done.stderr.startswith("scale.xpu:14: missing_fence: LM2GM of 64 bytes: its source was stored to")
    assert "  depends on model.store_to_dma_needs_fence\n" in done.stderr
    assert run("1", XPU_SIM="model.store_to_dma_needs_fence=0").returncode == 0


def test_profiles(folder):
    """Fences of the vendor's compiler, for all files, for some, or chosen at run time."""
    strict = [*COMMAND, "-DFORGET", "--mode", "strict"]
    for profiles, status in (
        (["production"], 0),
        (["*.xpu=production"], 0),
        (["*.cpp=production"], 3),
        (["production", "scale.xpu=portable"], 3),
    ):
        assert main([*strict, *(f"--profile={profile}" for profile in profiles)]) == 0
        assert run("1").returncode == status, profiles
    assert run("1", XPU_SIM="profile=production").returncode == 0
    assert main([word for word in strict if word != "--profile=portable"]) == 0  # the default
    assert run("1").returncode == 0
    assert main([*strict, "--profile", "production"]) == 0
    assert run("1", XPU_SIM="profile=portable").returncode == 3


def test_suppressions(folder):
    assert main([*COMMAND, "-DFORGET", "--mode", "strict"]) == 0
    rules = folder / "rules.txt"

    def suppressed(text: str) -> subprocess.CompletedProcess[str]:
        rules.write_text(text)
        return run("1", XPU_SIM_SUPPRESSIONS="rules.txt", XPU_SIM_JSON="report.json")

    for rule in ("missing_fence scale.xpu:14 the compiler adds it", "missing_* *.xpu the compiler adds it"):
        done = suppressed(f"# those that we know\n\n{rule}\n")
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads((folder / "report.json").read_text())["findings"] == []
    assert suppressed("race scale.xpu:14 x\nmissing_fence scale.xpu:14 it is added\n").stderr == (
        "xpu_sim: rules.txt:1: race scale.xpu:14: suppresses nothing; remove it\n"
    )
    assert suppressed("missing_fence scale.xpu:14 it is added\nrace scale.xpu:14 x\n").returncode == 1
    done = suppressed("missing_fence scale.xpu:13 another line\n")
    assert done.returncode == 1 and "missing_fence: LM2GM" in done.stderr and "suppresses nothing" in done.stderr
    done = suppressed("missing_fence scale.xpu:14\n")
    assert done.returncode == 2
    assert "XPU_SIM_SUPPRESSIONS: rules.txt:1: expected a check, a place and a reason" in done.stderr
    assert "expected a file that can be read" in run("1", XPU_SIM_SUPPRESSIONS="none.txt").stderr


HEADER = """\
#pragma once
template <typename T>
__device__ inline __attribute__((noinline)) void put(T* from, T* to, int count) {
  LM2GM(from, to, count * sizeof(T));
}
"""


def test_what_happens_in_a_header_is_headed_by_the_line_that_called(folder):
    (folder / "headers" / "put.h").write_text(HEADER)
    text = '#include "put.h"\n' + KERNEL.replace(
        "    LM2GM(tile, x + i, count * sizeof(T));", "    put(tile, x + i, count);"
    )
    (folder / "scale.xpu").write_text(
        text.replace(
            '#include "put.h"\n#include "xpu/kernel/cluster.h"\n', '#include "xpu/kernel/cluster.h"\n#include "put.h"\n'
        )
    )
    assert main([*COMMAND, "-DFORGET", "--mode", "strict"]) == 0
    done = run("1", XPU_SIM_JSON="report.json")
    assert done.stderr.startswith("scale.xpu:15: missing_fence: LM2GM of 64 bytes")
    assert "\n  inside headers/put.h:4 (put<float>)\n" in done.stderr
    (finding, *_) = json.loads((folder / "report.json").read_text())["findings"]
    assert finding["at"]["line"] == 15 and [one["line"] for one in finding["inside"]] == [4]
    (folder / "rules.txt").write_text("missing_fence put.h:4 checked\n")
    assert run("1", XPU_SIM_SUPPRESSIONS="rules.txt").returncode == 0


def test_what_a_program_reports(folder):
    assert main(COMMAND) == 0
    document = json.loads(run("2", "120", XPU_SIM_JSON="-").stdout.split("\n", 1)[1])
    assert [one["check"] for one in document["findings"]] == ["gm_out_of_bounds"]
    assert document["findings"][0]["at"] == {"file": "scale.xpu", "line": 9, "function": "scale<float, float>"}
    assert document["kernels"][0]["dma"]["GM2LM"]["bytes"] > 0
    assert run("1", XPU_SIM_JSON=str(folder / "report.json")).returncode == 0
    assert json.loads((folder / "report.json").read_text())["findings"] == []
    done = run("1", XPU_SIM="sead=3")
    assert done.returncode == 2 and "expected an option name (seed, dma," in done.stderr


COUNTERS = """\
scale<float>: 1 launch, last 2 x 64
  GM2LM: 800 bytes in 14 copies
  LM2GM: 800 bytes in 14 copies
  64-byte lines of GM: 28
  lines written in part: 2
  fences: 14
  bytes copied by the busiest core: 128
"""


def test_counters(folder):
    """Of all launches of a kernel, and of each launch, for people and for programs."""
    assert main(COMMAND) == 0
    total = run("2", XPU_SIM_REPORT="1").stderr
    assert total.startswith(COUNTERS) and "scale<float, float>: 1 launch, last 1 x 64\n" in total
    each = run("2", XPU_SIM_REPORT="launches").stderr
    assert each.startswith(COUNTERS + "  most LM in use: ")
    assert [line for line in each.splitlines() if ": 1 launch" in line] == [
        "scale<float>: 1 launch, last 2 x 64",
        "scale<float, float>: 1 launch, last 1 x 64",
    ]
    document = json.loads(run("2", XPU_SIM_JSON="-").stdout.split("\n", 1)[1])
    first, second = document["launches"]
    none = {"ops": 0, "bytes": 0}
    lm = first.pop("lm_high")
    assert 64 <= lm < 512
    assert first == {
        "kernel": "scale<float>", "launches": 1, "clusters": 2, "cores": 64,
        "dma": {
            "GM2LM": {"ops": 14, "bytes": 800}, "LM2GM": {"ops": 14, "bytes": 800},
            **dict.fromkeys(("GM2SM", "SM2GM", "GM2GSM", "GSM2GM"), none),
        },
        "gm_lines": 28, "partial_lines": 2, "scalar_gm": 0, "fences": 14, "barriers": 0, "max_core_dma_bytes": 128,
        "max_core_accesses": 0, "sm_bytes": 0,
    }  # fmt: skip
    assert second["gm_lines"] == 14 and second["clusters"] == 1
    assert [one["gm_lines"] for one in document["kernels"]] == [28, 14]


def test_compiler_errors_come_through_with_the_users_lines(folder, capfd):
    text = KERNEL.replace("return scale<float, float>", "return scale<float, floot>")
    (folder / "scale.xpu").write_text(text)
    assert main(COMMAND) == 1
    err = capfd.readouterr().err
    assert f"scale.xpu:{text[: text.index('floot')].count(chr(10)) + 1}:" in err and "floot" in err
    (folder / "scale.xpu").write_text(KERNEL)
    (folder / "host.cpp").write_text(HOST + "\nint broken = ;\n")
    assert main(COMMAND) == 1
    assert f"host.cpp:{HOST.count(chr(10)) + 2}:14: error: expected primary-expression" in capfd.readouterr().err
    (folder / "host.cpp").write_text(
        HOST.replace("scale_all(x", "no_such_function(x").replace("int scale_all(f", "int no_such_function(f")
    )
    assert main(COMMAND) == 1
    assert "undefined reference to `no_such_function" in capfd.readouterr().err


def test_a_library(folder):
    (folder / "scale.xpu").write_text(
        KERNEL + 'extern "C" int run(float* x, int n) {\n'
        '  xpu_sim::register_gm(x, n * 4, "x");\n  return scale_all(x, n, 5.0f, 3);\n}\n'
    )
    (folder / "scale.xpu").write_text('#include "xpu_sim/host.h"\n' + (folder / "scale.xpu").read_text())
    assert main(["xpu", "cc", "-DWIDTH=16", "-Iheaders", "--shared", "scale.xpu", "-o", "libscale.so"]) == 0
    code = (
        "import ctypes\n"
        "x = (ctypes.c_float * 100)(*range(100))\n"
        f"print(ctypes.CDLL({str(folder / 'libscale.so')!r}).run(x, 100), x[99])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # Three clusters scale by 5, each of them all of it: 5 * 5 * 5, then by 2.
    assert done.stdout == f"0 {ctypes.c_float(99 * 250).value}\n"


def test_json(folder, capsys):
    assert main([*COMMAND, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["status"] == 0 and document["mode"] == "fast" and document["output"] == "scale"
    assert [Path(command[0]).name for command in document["commands"]] == ["g++"] * 3


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["xpu", "cc", "gone.xpu", "-o", "x"],
            "expected a source file, got gone.xpu, which does not exist; check the path",
        ),
        (
            ["xpu", "cc", "scale.xpu", "-o", "gone/x"],
            "expected -o in a folder that exists, got gone/x; make the folder first",
        ),
        (["xpu", "cc", "scale.xpu", "-o", "scale.xpu"], "expected -o to name another file than the sources"),
        (["xpu", "cc", "scale.xpu"], "expected -o OUT, got none; name the program to make, or compile only with -c"),
        (["xpu", "cc", "-c", "scale.xpu", "host.cpp"], "expected one source to compile with -c, got 2 files"),
        (["xpu", "cc", "scale.xpu", "-o", "scale", "--dependencies", "scale.d"], "expected -c with --dependencies"),
        (["xpu", "cc", "scale.xpu", "-o", "x", "--profile", "fast"], "expected a profile (production | portable)"),
        (["xpu", "cc", "--mode", "slow", "scale.xpu", "-o", "x"], "invalid choice: 'slow'"),
        (["xpu", "cc", "torn.cpp", "-o", "x"], "torn.cpp:1: expected a launch"),
        (
            ["xpu", "cc", "--coverage", "--mode", "strict", "scale.xpu", "-o", "x"],
            "expected coverage with the mode fast",
        ),
    ],
)
def test_bad_input(folder, capsys, args, message):
    (folder / "torn.cpp").write_text("void f() { k<<<1, 2>>>; }\n")
    assert main(args) == 2
    assert message in capsys.readouterr().err


def test_no_compiler(folder, capsys, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert main(COMMAND) == 2
    assert "expected a C++ compiler, found no no-such-compiler" in capsys.readouterr().err


def test_a_kernel_of_this_project(tmp_path):
    """By itself, where only its first header brings the dialect."""
    root = Path(__file__).parents[2]
    source = root / "kernels_xpu_sim" / "kernels" / "adjust_batch.xpu"
    command = ["xpu", "cc", "-c", f"-I{root / 'kernels_common' / 'include'}", str(source), "-o", str(tmp_path / "k.o")]
    assert main(command) == 0


def test_a_finding_in_a_helper_names_its_callers(tmp_path, monkeypatch):
    """Inlined or called: from where the kernel came there. The other access is named as well."""
    (tmp_path / "helpers.h").write_text(
        "template <class T> static inline void put(T* gm, T value) {\n  LM2GM(&value, gm, sizeof(T));\n}\n"
        "static inline int second(_shared_ptr_ int* p) {\n  return p[1];\n}\n"
        "static __attribute__((noinline)) void called(int* out, int v) {\n  if (v > 0) put(out, v);\n}\n"
    )
    (tmp_path / "k.xpu").write_text(
        '#include "xpu/kernel/xtdk.h"\n#include "helpers.h"\n'
        "__global__ void k(int* out, int n) {\n  __shared__ int s[4];\n"
        "  if (core_id() == 0) s[1] = n;\n"
        "  const int t = second(s);\n"
        "  called(out + core_id(), t);\n}\n"
    )
    (tmp_path / "host.cpp").write_text(
        '#include "xpu_sim/host.h"\nvoid k(int*, int);\n'
        "int main() { k<<<1, 2>>>(xpu_sim::gm_alloc<int>(8), 3); }\n"
    )  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["xpu", "cc", "--mode", "strict", "--profile=portable", "k.xpu", "host.cpp", "-o", "scale"]) == 0
    findings = {one["check"]: one for one in json.loads(run(XPU_SIM_JSON="-").stdout)["findings"]}
    fence, race = findings["missing_fence"], findings["race"]
    assert fence["at"] == {"file": "k.xpu", "line": 7, "function": "k"}
    assert fence["inside"] == [
        {"file": "helpers.h", "line": 2, "function": "put<int>"},
        {"file": "helpers.h", "line": 8, "function": "called"},
    ]
    assert race["at"] == {"file": "k.xpu", "line": 6, "function": "k"}
    assert race["inside"] == [{"file": "helpers.h", "line": 5, "function": "second"}]
    assert race["callers"] == fence["callers"] == []
    assert race["other"] == "write by core 0 of cluster 0 at k.xpu:5"
    assert (race["space"], race["object"], race["offset"]) == ("SM", "s", 4)


def test_launches_in_headers(folder, capfd):
    """At any depth, found beside the including file or with -I; lines and names stay those of the header."""
    (folder / "launchers").mkdir()
    (folder / "launchers" / "deep.h").write_text(
        "#pragma once\ntemplate <typename T>\nint launch_deep(T* x, int n) {\n"
        "  return scale<T, T><<<1, 64>>>(x, n, T(3));  // not <<<1, 2>>>\n}\n"
    )
    (folder / "launchers" / "outer.h").write_text(
        '#pragma once\n#include "deep.h"\n#include "plain.h"\n#include <cstdio>\n'
        "#define LAUNCH(x, n) scale<float, float><<<2, 64>>>(x, n, 2.0f)\n"
    )
    (folder / "launchers" / "plain.h").write_text('#pragma once\n#include "outer.h"\nconstexpr int kPlain = 7;\n')
    kernel = KERNEL[: KERNEL.index("int scale_all")] + '#include "outer.h"\n#include "launchers/deep.h"\n'
    kernel += "int scale_all(float* x, int n, float, long long) { return launch_deep(x, n) + LAUNCH(x, n) + kPlain; }\n"
    (folder / "scale.xpu").write_text(kernel)
    assert main([*COMMAND, "-I", "launchers"]) == 0
    assert run("1").stdout == f"7 {99 * 3 * 2 * 2}\n"  # by both clusters
    (folder / "launchers" / "deep.h").write_text("#pragma once\n\nint f() { return scale<<<1, 64>>>; }\n")
    assert main([*COMMAND, "-I", "launchers"]) == 2
    assert "launchers/deep.h:3: expected a launch" in capfd.readouterr().err
    (folder / "launchers" / "deep.h").write_text("#pragma once\n\nint f() { return k<<<1, 64>>>(1) + ; }\n")
    assert main([*COMMAND, "-I", "launchers"]) == 1
    assert "deep.h:3:" in capfd.readouterr().err


@pytest.mark.parametrize("mode", ["fast", "asan", "strict"])
def test_objects(folder, mode):
    common = ["-DWIDTH=16", "-Iheaders", "--mode", mode]
    assert main(["xpu", "cc", "-c", "scale.xpu", *common, "--dependencies", "scale.d"]) == 0
    assert main(["xpu", "cc", "-c", "host.cpp", *common, "-o", "other.o"]) == 0
    assert main(["xpu", "cc", "scale.o", "other.o", "-o", "scale", "--mode", mode]) == 0
    done = run("1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 594\n", "")
    target, _, files = (folder / "scale.d").read_text().replace("\\\n", " ").partition(":")
    assert target == "scale.o" and {"scale.xpu", "headers/shape.h"} <= set(files.split())
    assert not any("xpu_cc-" in name for name in files.split())


def test_headers_compile_without_a_warning(folder, capfd):
    (folder / "all.cpp").write_text(
        '#include "xpu/kernel/cluster_partition.h"\n#include "xpu/plugin.h"\n#include "xpu_sim/host.h"\n'
        '#include "xpu/refactor/impl_public/wrapper_check.h"\n#include "xpu_sim/wrapper_calls.h"\n'
    )
    words = ("all", "extra", "pedantic", "shadow", "conversion", "sign-conversion", "old-style-cast")
    flags = [f"--cxxflag=-W{word}" for word in words]
    assert main(["xpu", "cc", "-c", "all.cpp", "-o", "all.o", *flags]) == 0
    assert capfd.readouterr().err == ""
