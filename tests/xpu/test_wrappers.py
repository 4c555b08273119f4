"""Wrappers of the usual form: both of their paths, run by xpu test and by programs of one's own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from specdec_hal.cli import main
from specdec_hal_xpu.calls import CallProgram

FOLDER = Path(__file__).parent / "wrappers"
NAME = "baidu::xpu::api::plugin::scale_segments"
SOURCES = {".cpp", ".xpu", ".h"}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Programs by the texts and settings that they were made from."""
    return tmp_path_factory.mktemp("built"), {}


@pytest.fixture
def folder(tmp_path, monkeypatch, built):
    """A folder with the wrapper, its kernel and inputs. Unless they change, they are compiled once."""
    programs, paths = built
    compiled = CallProgram.build.__func__

    def build(cls, what, mains, functions, messages):
        texts = tuple((path.name, path.read_text()) for path in sorted(tmp_path.rglob("*")) if path.suffix in SOURCES)
        key = texts, replace(what, output=Path()), tuple(functions)
        if what.coverage:  # its counts lie beside the program
            return compiled(cls, what, mains, functions, messages)
        if key not in paths:
            said = []
            compiled(cls, what, mains, functions, said)
            paths[key] = shutil.copy(what.output, programs / str(len(paths))), said
        program, said = paths[key]
        messages += said
        return cls(Path(shutil.copy(program, what.output)), tuple(mains), tuple(functions))

    monkeypatch.setattr(CallProgram, "build", classmethod(build))
    for path in FOLDER.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def change(path: Path, old: str, new: str) -> None:
    """Replace the only text that is `old` but for its line breaks and indents."""
    changed, count = re.subn(r"\s+".join(map(re.escape, old.split())), lambda _: new, path.read_text())
    assert count == 1
    path.write_text(changed)


def line_of(path: Path, text: str) -> int:
    before, _, _ = path.read_text().partition(text)
    return before.count("\n") + 1


def xpu_test(*more: str, of: str = "float") -> int:
    sources = ["scale_segments.cpp", "scale_segments.xpu"]
    common = ("--inputs", "scale_segments_inputs.py", "--cxxflag=-O0")  # compiling takes longer than running
    return main(["xpu", "test", *sources, "--wrapper", f"{NAME}<{of}>", *common, *more])


def test_both_paths_agree(folder, capsys):
    assert xpu_test("--cases", "2", "--seeds", "2") == 0
    assert capsys.readouterr().out == f"{NAME}<float>: 36 runs, none failed\n"


def test_a_type_of_its_own(folder, capsys):
    inputs = folder / "scale_segments_inputs.py"
    change(inputs, "rng.normal(size=offsets[-1]).astype(np.float32)", "rng.normal(size=offsets[-1]).astype(np.float16)")
    assert xpu_test("--cases", "2", "--seeds", "1", "--mode", "fast", of="float16") == 0
    assert xpu_test("--mode", "fast") == 2
    message = "argument 'x': expected an array of float32, got one of float16; pass it as declared"
    assert message in capsys.readouterr().err


def test_a_wrong_result_is_found(folder, capsys):
    change(folder / "scale_segments.xpu", "* factor)", "* factor + (i == 7))")
    assert xpu_test("--cases", "3", "--seeds", "1", "--mode", "fast", "--dma", "eager", "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert report["runs"] == 3 and report["failures"]
    for failure in report["failures"]:
        assert failure["mode"] == "fast" and failure["options"] == "seed=0,dma=eager" and failure["findings"] == []
        assert failure["message"].startswith("y[") and "as on the CPU path, got " in failure["message"]


def test_only_some_runs_show_it(folder, capsys):
    """A copy without a fence: right with eager copies, wrong with deferred ones; strict reports the line."""
    change(folder / "scale_segments.xpu", "GM2LM(x + at", "GM2LM_ASYNC(x + at")
    how = ("--cases", "1", "--seeds", "1")
    assert xpu_test(*how, "--mode", "fast", "--dma", "eager") == 0
    assert xpu_test(*how, "--mode", "fast", "--dma", "deferred") == 1
    capsys.readouterr()
    assert xpu_test(*how, "--mode", "strict", "--dma", "eager") == 1
    out = capsys.readouterr().out
    assert "case 0, --mode strict, XPU_SIM=seed=0,dma=eager:\n  " in out
    line = line_of(folder / "scale_segments.xpu", "tile[i] = ")
    assert f"scale_segments.xpu:{line}: read_in_flight: " in out and out.endswith(": 1 runs, 1 failed\n")


def test_the_cpu_path_is_looked_at_too(folder, capsys):
    change(
        folder / "scale_segments.cpp",
        "total[s] = offsets[s + 1] - offsets[s];\n  }\n  return api::SUCCESS;",
        "}\n  return 3;",
    )
    assert xpu_test("--cases", "1", "--seeds", "1", "--mode", "fast") == 1
    assert "case 0, --mode fast:\n  the CPU path: it gave 3: " in capsys.readouterr().out


def test_arguments_are_those_of_the_wrapper(folder, capsys):
    change(folder / "scale_segments_inputs.py", '        "total": np.zeros(len(lengths), np.int64),\n', "")
    assert xpu_test("--mode", "fast") == 2
    message = (
        "expected 5 arguments (x, offsets, factors, y, total), got 4 (x, offsets, factors, y); give each by its name"
    )
    assert message in capsys.readouterr().err
    (folder / "scale_segments_inputs.py").write_text("import gone\n")
    assert xpu_test("--mode", "fast") == 2
    assert (
        "scale_segments_inputs.py: expected a Python file that runs, got ModuleNotFoundError" in capsys.readouterr().err
    )


def test_arguments_go_by_their_names(folder, capsys):
    """In any order; unknown names are refused, and so are two swapped ones."""
    inputs = folder / "scale_segments_inputs.py"
    text = inputs.read_text()
    y = '        "y": np.zeros_like(x),\n'
    inputs.write_text(text.replace(y, "").replace('        "x": x,\n', y + '        "x": x,\n'))
    assert xpu_test("--cases", "1", "--seeds", "1", "--mode", "fast") == 0
    inputs.write_text(text.replace('"x": x', '"y": x').replace('"y": np', '"x": np'))
    assert xpu_test("--cases", "2", "--seeds", "1", "--mode", "fast") == 0  # y holds what is not read, x zeros
    inputs.write_text(text.replace('"x": x', '"input": x'))
    assert xpu_test("--mode", "fast") == 2
    assert "got 5 (input, offsets, factors, y, total); give each by its name" in capsys.readouterr().err


def test_tolerances_and_buffers_that_are_not_compared(folder, capsys):
    how = ("--cases", "2", "--seeds", "1", "--dma", "eager", "--mode", "fast")
    change(folder / "scale_segments.xpu", "* factor)", "* factor * 1.000001f)")
    assert xpu_test(*how) == 1
    assert xpu_test(*how, "--tolerance", "y=1e-8") == 1
    assert " within rtol 1e-08 and atol 0, got " in capsys.readouterr().out
    assert xpu_test(*how, "--tolerance", "y=1e-5") == 0
    assert xpu_test(*how, "--tolerance", "y=0,0.01") == 0
    assert xpu_test(*how, "--exclude", "y") == 0
    capsys.readouterr()
    for wrong, message in (
        (("--tolerance", "z=1"), "expected a buffer (x, offsets, factors, y, total), got 'z'"),
        (("--exclude", "z"), "expected a buffer (x, offsets, factors, y, total), got 'z'"),
        (("--tolerance", "total=1"), "argument 'total': expected floats where there is a tolerance, got int64"),
        (("--tolerance", "y"), "expected BUFFER=RTOL[,ATOL], got 'y'"),
        (("--tolerance", "y=-1"), "expected BUFFER=RTOL[,ATOL], got 'y=-1'"),
    ):
        assert xpu_test(*how, *wrong) == 2
        assert message in capsys.readouterr().err


def test_suppressions_are_those_of_all_runs(folder, capsys, monkeypatch):
    change(folder / "scale_segments.xpu", "mfence_lm(); LM2GM(tile", "LM2GM(tile")
    line = line_of(folder / "scale_segments.xpu", "LM2GM(tile")
    rule = f"missing_fence scale_segments.xpu:{line} the compiler adds it\n"
    (folder / "rules.txt").write_text(rule)
    monkeypatch.setenv("XPU_SIM_SUPPRESSIONS", "rules.txt")
    how = ("--cases", "1", "--seeds", "1", "--dma", "eager", "--mode", "fast", "--mode", "strict", "--profile=portable")
    assert xpu_test(*how) == 0  # only the runs of one mode find it
    (folder / "rules.txt").write_text(rule + "race scale_segments.xpu it is none\n")
    assert xpu_test(*how) == 1
    assert "rules.txt:2: race scale_segments.xpu: suppresses nothing; remove it\n" in capsys.readouterr().out
    (folder / "rules.txt").write_text("race\n")
    assert xpu_test(*how) == 2
    assert "XPU_SIM_SUPPRESSIONS: rules.txt:1: expected a check, a place and a reason" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "T* y, int64_t* total, int segments);",
            "T* y, int* total, int segments);",
            "expected the declaration to be as the definition, but argument 5 is declared int*, "
            "but defined long*; make them the same",
        ),
        (", int segments);", ");", "5 parameters are declared, but 6 defined"),
    ],
)
def test_a_declaration_that_differs_is_reported(folder, capsys, old, new, message):
    change(folder / "scale_segments.cpp", old, new)
    # The launch follows the declaration, so that the compiler sees nothing wrong.
    call = "x, offsets, factors, y, reinterpret_cast<XPU_INT64*>(total), segments"
    changed = call.replace("XPU_INT64", "int") if "int* total" in new else call.replace(", segments", "")
    change(folder / "scale_segments.cpp", call, changed)
    sources = ["scale_segments.cpp", "scale_segments.xpu"]
    assert main(["xpu", "cc", "--shared", *sources, "-o", "libscale.so"]) == 2
    assert message in capsys.readouterr().err


def test_a_fence_that_the_compiler_adds_is_advisory(folder, capsys, monkeypatch):
    change(folder / "scale_segments.xpu", "mfence_lm(); LM2GM(tile", "LM2GM(tile")
    how = ("--cases", "1", "--seeds", "1", "--dma", "eager")
    assert xpu_test(*how) == 0
    line = line_of(folder / "scale_segments.xpu", "LM2GM(tile")
    head, found, last = capsys.readouterr().out.splitlines()
    assert head == "advisory, without the fences that the vendor's compiler adds (--profile portable):"
    assert found.startswith("  ") and f"scale_segments.xpu:{line}: missing_fence: LM2GM of " in found
    assert last == f"{NAME}<float>: 3 runs, none failed"
    assert xpu_test(*how, "--json") == 0
    assert [one["check"] for one in json.loads(capsys.readouterr().out)["advisory"]] == ["missing_fence"]
    assert xpu_test(*how, "--mode", "fast") == 0  # which does not see it
    assert capsys.readouterr().out == f"{NAME}<float>: 1 runs, none failed\n"
    assert xpu_test(*how, "--profile=portable") == 1
    (folder / "rules.txt").write_text(f"missing_fence scale_segments.xpu:{line} the compiler adds it\n")
    monkeypatch.setenv("XPU_SIM_SUPPRESSIONS", "rules.txt")
    capsys.readouterr()
    assert xpu_test(*how) == 0
    assert capsys.readouterr().out == f"{NAME}<float>: 3 runs, none failed\n"


def test_what_is_wrong_in_the_sources_is_named_once_and_last(folder, capsys, monkeypatch):
    check = "WRAPPER_CHECK_PTR(ctx, {}, segments, factors)"
    change(folder / "scale_segments.cpp", check.format("float"), check.format("int16_t"))
    unset = "int sum; for (int i = 0; i < count; ++i) sum += i; if (sum == 123456789) tile[0] = 0;"
    change(folder / "scale_segments.xpu", "mfence_lm(); LM2GM(tile", f"{unset}\n mfence_lm(); LM2GM(tile")
    change(folder / "scale_segments.xpu", "T tile", "long unused_here = 0; T tile")
    sources = ["scale_segments.cpp", "scale_segments.xpu", "--wrapper", f"{NAME}<float>"]
    how = ("--inputs", "scale_segments_inputs.py", "--cases", "2", "--seeds", "1", "--dma", "eager", "--json")
    lines = {
        "maybe_uninitialised": line_of(folder / "scale_segments.xpu", "int sum"),
        "wrapper_type": line_of(folder / "scale_segments.cpp", "int16_t, segments"),
    }
    assert main(["xpu", "test", *sources, *how]) == 1
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert report["failures"] == [] and report["runs"] == 6
    assert {one["check"]: one["at"]["line"] for one in report["of_sources"]} == lines and len(report["of_sources"]) == 2
    assert "uninitialized" not in err and err.count("'long' has 32 bits on the device") == 1
    assert main(["xpu", "test", *sources, *how[:-1]]) == 1
    first, second, last = capsys.readouterr().out.splitlines()
    assert f"scale_segments.xpu:{lines['maybe_uninitialised']}: maybe_uninitialised: " in first and "sum" in first
    message = "factors points to float, but its check names short; name the pointer's type"
    assert f"scale_segments.cpp:{lines['wrapper_type']}: wrapper_type: {message}" in second
    assert last == f"{NAME}<float>: 6 runs, none failed"
    (folder / "rules.txt").write_text("maybe_* scale_segments.xpu reviewed\nwrapper_type *.cpp reviewed\nrace * x\n")
    monkeypatch.setenv("XPU_SIM_SUPPRESSIONS", "rules.txt")
    assert main(["xpu", "test", *sources, *how]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["of_sources"], report["unused_suppressions"]) == ([], ["rules.txt:3: race *"])


def test_names_are_checked_before_anything_is_compiled(folder, capsys, monkeypatch):
    monkeypatch.setattr(CallProgram, "build", lambda *args: pytest.fail("it compiles"))
    assert xpu_test("--exclude", "z") == 2
    assert "expected a buffer (x, offsets, factors, y, total), got 'z'; name one of them" in capsys.readouterr().err
    change(folder / "scale_segments_inputs.py", '"factors":', '"factor":')
    assert xpu_test() == 2
    assert "(x, offsets, factors, y, total), got 5 (x, offsets, factor, y, total)" in capsys.readouterr().err


HOST = """\
#include <cstdio>

#include "xpu/runtime.h"
#include "xpu/xdnn.h"

namespace api = baidu::xpu::api;
namespace baidu::xpu::api::plugin {
template <typename T>
int scale_segments(Context*, const T*, const VectorParam<int>&, const float*, T*, int64_t*);
}

int main(int argc, char**) {
  float x[100], y[100], f[2] = {2, 3};
  int offsets[3] = {0, 40, argc == 2 ? 101 : 100};
  int64_t total[2];
  for (int i = 0; i < 100; ++i) x[i] = i;
  float *gx, *gy, *gf;
  int64_t* gt;
  xpu_malloc((void**)&gx, sizeof x);
  xpu_malloc((void**)&gy, sizeof x);
  xpu_malloc((void**)&gf, sizeof f, XPU_MEM_L3);
  xpu_malloc(&gt, sizeof total);
  xpu_memcpy(gx, x, sizeof x, XPU_HOST_TO_DEVICE);
  xpu_memcpy(gf, f, sizeof f, argc == 3 ? XPU_DEVICE_TO_HOST : XPU_HOST_TO_DEVICE);
  api::Context* ctx = api::create_context();
  ctx->set_debug_level(1);
  const int status = api::plugin::scale_segments<float>(ctx, gx, {offsets, 3, nullptr}, gf, gy, gt);
  std::printf("%d %d\\n", status, xpu_wait(ctx->xpu_stream));
  if (status == 0) {
    xpu_memcpy(y, gy, sizeof y, XPU_DEVICE_TO_HOST);
    xpu_memcpy(total, gt, sizeof total, XPU_DEVICE_TO_HOST);
    std::printf("%g %g %d\\n", y[39], y[99], static_cast<int>(total[1]));
  }
  api::destroy_context(ctx);
  return xpu_free(gx) + xpu_free(gy) + xpu_free(gf) + xpu_free(gt);
}
"""


def test_a_project_has_its_own_plugin_header(folder):
    (folder / "include" / "xpu").mkdir(parents=True)
    (folder / "include" / "xpu" / "plugin.h").write_text(
        '#pragma once\n#include "xpu/xdnn.h"\n#define SIZES const float*\n'
    )
    change(
        folder / "scale_segments.cpp",
        "const VectorParam<int>& offsets, const float* factors, T* y,\n",
        "const VectorParam<int>& offsets, SIZES factors, T* y,\n",
    )
    how = ("--cases", "1", "--seeds", "1", "--dma", "eager", "--mode", "fast")
    assert xpu_test(*how) == 2  # without -I
    assert xpu_test(*how, "-I", "include") == 0


def test_a_program_on_the_runtime(folder):
    (folder / "host.cpp").write_text(HOST)
    assert main(["xpu", "cc", "scale_segments.cpp", "scale_segments.xpu", "host.cpp", "-o", "scale"]) == 0

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["./scale", *args], env={**os.environ}, capture_output=True, text=True, check=False)

    done = run()
    assert (done.returncode, done.stdout) == (0, "0 0\n78 297 60\n")
    assert done.stderr.startswith("scale_segments T 0x")  # the wrapper's own dump
    # One element more than there is: the wrapper's check of its pointer says so.
    done = run("1")
    assert done.stdout == "1 0\n"
    assert "scale_segments.cpp:53: expected 404 bytes of GM at x, got 400\n" in done.stderr
    # A copy in the wrong direction is a finding at its line.
    done = run("1", "2")
    line = HOST[: HOST.index("argc == 3")].count("\n") + 1
    assert done.returncode == 1
    assert f"host.cpp:{line}: host_pointer: expected device memory, got another address\n" in done.stderr


def test_lines_that_no_core_ran(folder, capsys):
    change(
        folder / "scale_segments.xpu",
        "mfence_lm(); LM2GM(tile",
        "if (count == 100) {\n        tile[0] = 1;\n      }\n      mfence_lm();\n      LM2GM(tile",
    )
    how = ("--cases", "2", "--seeds", "1", "--dma", "eager", "--coverage", "--cxxflag=-O2")
    assert xpu_test(*how, "--mode", "strict") == 2
    assert "expected --coverage with --mode fast" in capsys.readouterr().err
    assert xpu_test(*how, "--mode", "fast") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("scale_segments.xpu: ") and lines[0].endswith(" lines ran")
    assert [line.split(":")[1].strip() for line in lines[1:-1]] == ["tile[0] = 1;"]


def test_going_on_finds_more_in_one_run(folder, capsys):
    """Two copies of no bytes: the first ends the run, unless it should continue."""
    change(folder / "scale_segments.xpu", "LM2GM(tile, y + at, count * sizeof(T))", "LM2GM(tile, y + at, 0)")
    change(folder / "scale_segments.xpu", "LM2GM(&n, total + s, sizeof(n))", "LM2GM(&n, total + s, 0)")
    lines = {line_of(folder / "scale_segments.xpu", text) for text in ("LM2GM(tile", "LM2GM(&n")}
    how = ("--cases", "1", "--seeds", "1", "--dma", "eager", "--mode", "fast", "--json")

    def found(*more: str) -> set[int]:
        assert xpu_test(*how, *more) == 1
        (failure,) = json.loads(capsys.readouterr().out)["failures"]
        return {finding["at"]["line"] for finding in failure["findings"] if finding["check"] == "dma_len_zero"}

    assert len(found()) == 1
    assert found("--keep-going") == lines


def test_the_timeline_is_of_the_first_failure(folder, capsys):
    change(folder / "scale_segments.xpu", "mfence_lm(); LM2GM(tile", "LM2GM(tile")
    how = ("--cases", "1", "--seeds", "1", "--dma", "eager", "--mode", "fast", "--mode", "strict", "--profile=portable")
    assert xpu_test(*how, "--trace", "out.json") == 1
    events = json.loads((folder / "out.json").read_text())["traceEvents"]
    assert {event["name"] for event in events if event["ph"] == "i"} == {"missing_fence"}
