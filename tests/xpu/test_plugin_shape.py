"""Wrappers in the shape of FastDeploy's plugin, in a folder of its own layout: plugin/include, src/wrapper, src/kernel.

The public sources themselves are not in this repository: these have their includes, namespaces, macros and launches.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specdec_hal_xpu.calls import Call, CallProgram
from specdec_hal_xpu.cc import Build, build
from tests.xpu.program import Program

FOLDER = Path(__file__).parent / "plugin_shape"
WRAPPERS = sorted((FOLDER / "src" / "wrapper").glob("*.cpp"))
PLUGIN = "baidu::xpu::api::plugin::"
NAMES = [PLUGIN + name for name in ("gather_steps", "scale_logits<float>", "scale_logits<bfloat16>", "count_tokens")]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> CallProgram:
    """All wrappers in one program, which are compiled for themselves; the kernels with every check."""
    sources = (*WRAPPERS, *sorted((FOLDER / "src" / "kernel" / "kunlun3cpp").glob("*.xpu")))
    output = tmp_path_factory.mktemp("plugin") / "plugin"
    includes = (str(FOLDER / "plugin" / "include"),)
    what = Build(sources=sources, output=output, mode="strict", includes=includes, flags=("-Wno-unused-parameter",))
    return CallProgram.build(what, [FOLDER / "plugin" / "include" / "xpu" / "plugin.h"], NAMES)


def both(program, name, arguments, out):
    """The call's results in the named arrays, on the CPU path and on the device's."""
    results = []
    for cpu in (True, False):
        given = {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in arguments.items()}
        ran = program.run([Call(PLUGIN + name, list(given.values()), cpu=cpu)], options="seed=3,dma=random")
        assert (ran.statuses, ran.findings) == ([0], []), ran.err
        results.append([given[key] for key in out])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
    return results[0]


def test_flags_and_64_bit_numbers(program):
    steps, stops = np.arange(100, dtype=np.int64) << 33, np.arange(100) % 3 == 0
    given = {"step_idx": steps, "stop": stops, "out": np.zeros_like(steps), "on": np.zeros(100, np.int32), "n": 100}
    out, running = both(program, "gather_steps", given, ("out", "on"))
    np.testing.assert_array_equal(out, np.where(stops, -1, steps))
    np.testing.assert_array_equal(running, ~stops)


def test_the_operators_that_wrappers_call(program):
    """api::constant and api::cast, on the host and on the device."""
    logits = np.linspace(-3, 3, 300, dtype=np.float32).reshape(3, 100)
    factors = np.array([0.5, 1, 3], np.float32)
    given = {"logits": logits, "temperatures": factors, "out": np.zeros_like(logits), "batch": 3, "vocab": 100}
    (out,) = both(program, "scale_logits<float>", given, ("out",))
    np.testing.assert_array_equal(out, logits * factors[:, None])
    narrow = (logits.view(np.uint32) >> 16).astype(np.uint16)
    given |= {"logits": narrow, "out": np.zeros_like(narrow)}
    (out,) = both(program, "scale_logits<bfloat16>", given, ("out",))
    wide = (out.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(wide, logits * factors[:, None], rtol=0.02)


def test_a_vector_of_the_host(program):
    tokens = np.where(np.arange(40).reshape(2, 20) % 4 == 0, -1, 7).astype(np.int64)
    lengths = np.array([20, 6], np.int32)
    given = {"tokens": tokens, "lengths": lengths, "counts": np.zeros(2, np.int64), "width": 20}
    (counts,) = both(program, "count_tokens", given, ("counts",))
    assert counts.tolist() == [15, 4]


CHECKS = """\
#include "xpu/plugin.h"
#include "xpu/refactor/impl_public/wrapper_check.h"
namespace api = baidu::xpu::api;
int f(api::Context* ctx, const int64_t* ids, const float* x, const void* any, bool* flags) {
  WRAPPER_CHECK_PTR(ctx, long long, 4, ids)  // the device's int64_t
  WRAPPER_CHECK_PTR(ctx, float, 4, x + 1)
  WRAPPER_CHECK_PTR(ctx, int, 4, any)
  WRAPPER_CHECK_PTR(ctx, bool, 4, flags)
  if (ids) WRAPPER_CHECK_PTR_OR_NULL(ctx, const float, 4, x)
  WRAPPER_CHECK_PTR(ctx, int, 4, ids)      // narrower
  WRAPPER_CHECK_PTR(ctx, int, 4, x)        // the same size
  WRAPPER_CHECK_2PTRS(ctx, int8_t, 4, flags, flags)
  return 0;
}
int main() {
  api::Context ctx(api::kCPU);
  int64_t ids[4];
  float x[4];
  bool flags[4];
  return f(&ctx, ids, x, x, flags) + f(&ctx, ids, x, x, flags);
}
"""


def test_the_type_of_a_checked_pointer_is_compared(tmp_path, capfd):
    (tmp_path / "f.cpp").write_text(CHECKS)
    assert build(Build(sources=(tmp_path / "f.cpp",), output=tmp_path / "f"))[0] == 0
    assert capfd.readouterr().err == ""
    result = Program(tmp_path / "f")()
    assert result.status == 1 and result.checks == {"wrapper_type"}
    ends = "; name the pointer's type, which gives the number of bytes"
    assert [(one["at"]["line"], one["count"], one["message"].removesuffix(ends)) for one in result.findings] == [
        (10, 2, "ids points to long, but its check names int"),
        (11, 2, "x points to float, but its check names int"),
        (12, 4, "flags points to bool, but its check names signed char"),
    ]
