"""Kernels in the shape of public libraries: their headers, macros, names and types.

The public sources themselves are not in this repository; what they need is written down in the issue of these tests.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from specdec_hal.cli import main
from specdec_hal_xpu.calls import Call
from specdec_hal_xpu.device import type_warnings, vector_assembly

FILES = {
    "devices/kunlun/common.h": """\
#pragma once
#include "types/numbers.h"
#include "../shared/status.h"
#include "xpu/kernel/cluster.h"
#include "xpu/kernel/cluster_primitive.h"
#include "xpu/kernel/xtdk_bf16.h"
#include "xpu/kernel/xtdk_trigonometric.h"
#include "xpu/kernel/xtdk_simd_xpu2.h"
#define LAUNCH_FOR(TYPE) \\
  if (type == type_of<TYPE>()) { \\
    scale<128, TYPE> \\
        <<<8, \\
           64, reinterpret_cast<XPUStream>(stream)>>>( \\
            static_cast<const TYPE*>(x), \\
            static_cast<TYPE*>(y), \\
            n); \\
    return kOk; \\
  }
#define LAUNCH_ALL() \\
  LAUNCH_FOR(float) \\
  LAUNCH_FOR(half) \\
  LAUNCH_FOR(bfloat16_t) \\
  return kUnknown
""",
    "devices/kunlun/types/numbers.h": """\
#pragma once
#include <type_traits>
#include "xpu/runtime.h"
#include "xpu/kernel/cluster_simd.h"
template <typename T>
constexpr int type_of() {
  return std::is_same<T, float>::value ? 0 : std::is_same<T, half>::value ? 1 : 2;
}
template <typename T>
static inline __device__ float to_float(T x) {
  if constexpr (xpu_std::is_same<T, bfloat16_t>::value) {
    return __bfloat162float(x);
  } else {
    return static_cast<float>(x);
  }
}
""",
    "devices/shared/status.h": "#pragma once\nenum Status { kOk, kUnknown };\n",
    "ops/scale/kernel.h": """\
#pragma once
#include "../../devices/kunlun/common.h"
template <unsigned int BLOCK, typename T>
__global__ void scale(const T* x, T* y, int n) {
  const int cid = core_id(), step = core_num() * cluster_num();
  __simd__ T lm_x[BLOCK];
  __simd__ float lm_y[BLOCK];
  for (int i = (cluster_id() * core_num() + cid) * BLOCK; i < n; i += step * BLOCK) {
    const int count = min(static_cast<int>(BLOCK), n - i);
    GM2LM(x + i, lm_x, count * sizeof(T));
    for (int k = 0; k < count; k++) lm_y[k] = to_float(lm_x[k]);
    for (int k = 0; k < count; k += 16) {
      float32x16_t v = vload_lm_float32x16_mz(lm_y + k);
      float32x16_t two(2);
      v = vvmul_float32x16_mz(v, two);
      vstore_lm_float32x16_mh(lm_y + k, vvmax_float32x16_mh(v, svmul_float32x16(3.0f, v), v));
    }
    for (int k = 0; k < count; k++) lm_x[k] = static_cast<T>(lm_y[k]);
    mfence_lm();
    LM2GM(lm_x, y + i, count * sizeof(T));
  }
}
""",
    "ops/scale/launch.h": """\
#pragma once
#include "kernel.h"
inline int launch_scale(int type, const void* x, void* y, int n, void* stream) {
  LAUNCH_ALL();
}
""",
    "ops/scale/scale.xpu": """\
#include "launch.h"
#include "xpu_sim/host.h"
#include <cstdio>
template <typename T>
static int run() {
  T* x = xpu_sim::gm_alloc<T>(1000, "x");
  for (int i = 0; i < 1000; i++) x[i] = static_cast<T>(static_cast<float>(i % 128) - 64);
  const int status = launch_scale(type_of<T>(), x, x, 1000, nullptr);
  int right = 0;
  for (int i = 0; i < 1000; i++) {
    const float v = 2 * (static_cast<float>(i % 128) - 64);
    right += static_cast<float>(x[i]) == (3 * v > v ? 3 * v : v);
  }
  std::printf("%d %d ", status, right);
  return 0;
}
int main() {
  return run<float>() + run<half>() + run<bfloat16_t>() + (launch_scale(7, nullptr, nullptr, 1, nullptr) != kUnknown);
}
""",
}


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("mode", ["fast", "strict"])
def test_a_library_of_its_own_layout(library, mode, capfd):
    """Headers that launch in macros of several lines and include what lies beside them, or above."""
    flags = ("--cxxflag=-Wall", "--cxxflag=-Wno-unused-parameter")
    assert main(["xpu", "cc", "--mode", mode, "ops/scale/scale.xpu", *flags, "-o", "scale"]) == 0
    assert capfd.readouterr().err == ""
    done = subprocess.run(["./scale"], env={**os.environ}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 1000 0 1000 0 1000 ", "")


def test_what_differs_on_the_device_draws_warnings(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    Path("sizes.h").write_text(
        "static inline __device__ int narrow(long x) {\n  return static_cast<int>(x);\n}\n"
        "inline long on_the_host(double x) { return static_cast<long>(x); }\n"
    )
    Path("k.xpu").write_text(
        '#include "xpu/kernel/cluster.h"\n#include "sizes.h"\n'
        "__global__ void k(float* x, long long n, const int64_t* m) {  // a long comment\n"
        "  unsigned long wide = n;\n  x[0] = 2.0 * static_cast<double>(x[1]);\n"
        "  x[2] = narrow(wide);\n  primitive_cast<int64_t, float>(m, x, 1);\n}\n"
    )
    assert main(["xpu", "cc", "-c", "k.xpu"]) == 0
    err = capfd.readouterr().err
    long = "'long' has 32 bits on the device and 64 here; use int or int64_t"
    assert [line for line in err.splitlines() if "device" in line and "/" not in line.split(":")[0]][:3] == [
        f"k.xpu:4: warning: {long}",
        "k.xpu:5: warning: the device has no 'double'; use float",
        f"sizes.h:1: warning: {long}",
    ]
    assert "the vendor's header does not convert between these types: nothing is done" in err


def test_a_value_that_the_compiler_makes_away_with_draws_its_warning(tmp_path, monkeypatch, capfd):
    """No build sees it: there is no load of it."""
    monkeypatch.chdir(tmp_path)
    Path("k.xpu").write_text(
        '#include "xpu/kernel/cluster.h"\n__global__ void k(int* out, int n) {\n  int count, other = n;\n'
        "  for (int i = 0; i < n; ++i) count += i;\n  out[0] = count + other;\n}\n"
    )
    assert main(["xpu", "cc", "-c", "--mode", "strict", "k.xpu"]) == 0
    assert "'count' may be used uninitialized" in capfd.readouterr().err.replace("\u2018", "'").replace("\u2019", "'")
    assert main(["xpu", "cc", "-c", "k.xpu", "--cxxflag=-w"]) == 0
    assert capfd.readouterr().err == ""


OWN_PARTITION = """\
#include "xpu/kernel/cluster.h"
#include "xpu/kernel/xtdk_atomic_sm_xpu3.h"

template <typename TID>
static inline __device__ void partition(int tid, int nthreads, TID len, int align, TID* start, TID* end) {
  const TID each = (len / align + nthreads - 1) / nthreads * align;
  *start = min(len, tid * each);
  *end = min(len, *start + each);
}

__global__ void rms_norm(const half* x, half* y, float* largest, int dim) {
  __shared__ float total, most;
  half tile[64];
  int begin, end;
  if (core_id() == 0) total = most = 0.0f;
  mfence_sm();
  sync_cluster();
  partition(core_id(), core_num(), dim, 16, &begin, &end);
  const int count = end - begin;
  const std::plus<float> add;
  float sum = 0;
  if (count > 0) GM2LM(x + cluster_id() * dim + begin, tile, count * sizeof(half));
  for (int i = 0; i < count; i++) sum = add(sum, __half2float(tile[i]) * __half2float(tile[i]));
  atomicadd(&total, sum);
  ticket_lock_mix();
  most = fmaxf(most, sum);
  mfence_sm();
  ticket_unlock_mix();
  mfence_sm();
  sync_cluster();
  const float scale = rsqrt(total / dim);
  for (int i = 0; i < count; i++) tile[i] = __float2half_rn(__half2float(tile[i]) * scale);
  mfence_lm();
  if (count > 0) LM2GM(tile, y + cluster_id() * dim + begin, count * sizeof(half));
  float copy = most;
  mfence_lm();
  if (core_id() == 0) LM2GM(&copy, largest + cluster_id(), sizeof(float));
}

// silu and gelu of each number
__global__ void activations(const half* x, half* y, bfloat16_t* z, int n) {
  half one;
  for (int i = cluster_id() * core_num() + core_id(); i < n; i += core_num() * cluster_num()) {
    GM2LM(x + i, &one, sizeof(half));
    const float v = __half2float(one);
    half silu = __float2half(v / (1.0f + __half2float(hexp(__float2half(-v)))));
    bfloat16_t gelu = __float2bfloat16(0.5f * v * (1.0f + fast_erf(v * 0.70710678f)));
    mfence_lm();
    LM2GM(&silu, y + i, sizeof(half));
    LM2GM(&gelu, z + i, sizeof(bfloat16_t));
  }
}
"""


@pytest.mark.parametrize("mode", ["fast", "strict"])
def test_names_of_a_library_that_has_a_partition_of_its_own(xpu_programs, tmp_path, mode):
    (tmp_path / "k.xpu").write_text(OWN_PARTITION)
    program = xpu_programs([tmp_path / "k.xpu"], ["rms_norm", "activations"], mode, flags=["-Wall", "-Werror"])
    x = np.random.default_rng(0).normal(size=(3, 320)).astype(np.float16)
    y, z, largest = np.zeros_like(x), np.zeros(x.shape, np.uint16), np.zeros(3, np.float32)
    ran = program.run([Call("rms_norm", [x, y, largest, 320], 3, 16)])
    assert (ran.status, ran.findings) == (0, [])
    wide = x.astype(np.float32)
    np.testing.assert_allclose(y, wide / np.sqrt((wide**2).mean(1, keepdims=True)), rtol=2e-3)
    parts = (wide**2).reshape(3, -1, 32)[:, :10].sum(2)
    np.testing.assert_allclose(largest, parts.max(1), rtol=1e-5)
    ran = program.run([Call("activations", [x, y, z, x.size], 2, 64)])
    assert (ran.status, ran.findings) == (0, [])
    gelu = [0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in wide.reshape(-1)]
    np.testing.assert_allclose(y, wide / (1 + np.exp(-wide)), rtol=4e-3)
    given = (z.astype(np.uint32) << 16).view(np.float32).reshape(-1)
    np.testing.assert_allclose(given, gelu, rtol=5e-3, atol=1e-6)


ASSEMBLY = """\
#include "xpu/kernel/cluster.h"
__global__ void k(float* x) {
  float32x16_t v(1.0f);
  int8x64_t w;
  __asm__ __volatile__(
      "vfloat2fix8_ll.rn %0, %1, %2" : "=v"(w) : "v"(v), "M"(15));
  __asm__ __volatile__("vfloat2fix8_lh.rn %0, %1" : "=&v"(w) : "v"(v));
}
"""


def test_vector_assembly_is_refused_in_one_line(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    Path("k.xpu").write_text(ASSEMBLY)
    refused = (
        "k.xpu:5: error: vector assembly ('vfloat2fix8_ll.rn' and 1 more) is not modelled: expected C++ with the "
        "builtins of vectors; specdec-hal xpu builtins lists them\n"
    )
    for mode in ("fast", "strict"):
        assert main(["xpu", "cc", "-c", "k.xpu", "--mode", mode]) != 0
        assert capfd.readouterr().err == refused
    # Other errors come first; and assembly that is not compiled is no error.
    Path("k.xpu").write_text(ASSEMBLY + "int f() { return unknown; }\n")
    assert main(["xpu", "cc", "-c", "k.xpu"]) != 0
    err = capfd.readouterr().err
    assert "k.xpu:9:" in err and "unknown" in err and "assembly" not in err
    Path("k.xpu").write_text("#if 0\n" + ASSEMBLY + "#endif\n")
    assert main(["xpu", "cc", "-c", "k.xpu"]) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.slow  # compiles nine files
def test_the_script_counts_what_compiles_and_what_is_found(library):
    root, wrappers = Path(__file__).parents[2], Path(__file__).parent / "wrappers"
    Path("bad.xpu").write_text(ASSEMBLY)
    Path("sum.xpu").write_text(
        '#include "xpu/kernel/cluster.h"\n__global__ void k(int* out, int n) {\n  int count;\n'
        "  for (int i = 0; i < n; ++i) count += i;\n  out[0] = count;\n}\n"
    )
    for name in ("scale_segments.cpp", "scale_segments.xpu"):
        Path(name).write_text((wrappers / name).read_text().replace("mfence_lm();\n      LM2GM(t", "LM2GM(t"))
    Path("inputs").mkdir()
    Path("inputs/scale_inputs.py").write_text(
        (wrappers / "scale_segments_inputs.py").read_text()
        + 'WRAPPER = "baidu::xpu::api::plugin::scale_segments<float>"\n'
        'SOURCES = "scale_segments.cpp", "scale_segments.xpu"\n'
    )
    command = [sys.executable, str(root / "benchmarks" / "xpu_public.py"), ".", "--inputs", "inputs"]
    command += ["--cases", "1", "--seeds", "1", "--out", "figures.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [re.sub(r" error: .*", "", line) for line in done.stdout.splitlines()] == [
        "kernels: 3 of 4 compile; findings: 1 maybe_uninitialised",
        "  bad.xpu: fast: bad.xpu:5:",
        "wrappers: 1 of 1 compile; findings: none",
        "baidu::xpu::api::plugin::scale_segments<float>: 6 runs, 0 failed, 0 of them without a finding",
        "  findings: none; advisory: 1 missing_fence",
    ]
    assert json.loads(Path("figures.json").read_text())["figures"]["kernels"]["of"] == 4


def test_lines_are_those_of_the_file():
    text = '#line 7 "own.xpu"\n__device__ long f();\n\nasm("vadd %0" : "=&v"(a)); asm("loada.w" : "=&r"(a));\n'
    assert [one.partition(": ")[0] for one in type_warnings(text, "copy")] == ["own.xpu:7"]
    assert [one.partition(": ")[0] for one in vector_assembly(text, "copy")] == ["own.xpu:9"]
    assert type_warnings("// long\nint long_name; __device__ long long f(); double g();", "copy") == []
