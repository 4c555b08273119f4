"""Create an operator for Kunlun XPUs: a working kernel, its wrapper with a CPU path, and inputs.

  specdec-hal xpu new scale && specdec-hal xpu test scale.cpp scale.xpu --wrapper plugin::scale --inputs scale_inputs.py

The operator doubles an array. Edit the three files to your needs; xpu test reports when the paths differ.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from specdec_hal.cli.output import Output
from specdec_hal.errors import CompileError

HELP = "create a kernel, a wrapper and inputs to start from"

_KERNEL = """\
#include "xpu/kernel/cluster.h"
#include "xpu/kernel/cluster_partition.h"
#include "xpu/kernel/cluster_primitive.h"

namespace xpu3 {
namespace plugin {

// y = 2 * x, a tile at a time: each core has a part of the array and 8 KB of local memory, its stack included.
__global__ void NAME(const float* x, float* y, int n) {
  constexpr int kTile = 256;
  float tile[kTile];
  int begin, end;
  partition(core_id() * cluster_num() + cluster_id(), core_num() * cluster_num(), n, 16, &begin, &end);
  for (int at = begin; at < end; at += kTile) {
    const int count = min(kTile, end - at);
    GM2LM(x + at, tile, count * sizeof(float));
    for (int i = 0; i < count; ++i) tile[i] = 2 * tile[i];
    mfence_lm();  // the stores above, before the copy below reads them
    LM2GM(tile, y + at, count * sizeof(float));
  }
}

}  // namespace plugin
}  // namespace xpu3
"""

_WRAPPER = """\
#include "xpu/plugin.h"
#include "xpu/refactor/impl_public/wrapper_check.h"

namespace xpu3 {
namespace plugin {
__attribute__((global)) void NAME(const float* x, float* y, int n);
}  // namespace plugin
}  // namespace xpu3

namespace plugin {

namespace api = baidu::xpu::api;

static int cpu_wrapper(const float* x, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = 2 * x[i];
  return api::SUCCESS;
}

static int xpu3_wrapper(api::Context* ctx, const float* x, float* y, int n) {
  const int ret_xre = xpu3::plugin::NAME<<<ctx->ncluster(), 64, ctx->xpu_stream>>>(x, y, n);
  KERNEL_ASSERT_SUCCESS(ctx, ret_xre);
  return api::SUCCESS;
}

int NAME(api::Context* ctx, const float* x, float* y, int n) {
  WRAPPER_CHECK_CTX(ctx);
  WRAPPER_DUMP_FUNCTION_T1(ctx, "NAME", float);
  WRAPPER_DUMP_PARAM3(ctx, x, y, n);
  WRAPPER_DUMP(ctx);
  WRAPPER_ASSERT_GT(ctx, n, 0);
  WRAPPER_CHECK_PTR(ctx, float, n, x);
  WRAPPER_CHECK_PTR(ctx, float, n, y);
  if (ctx->dev().type() == api::kCPU) return cpu_wrapper(x, y, n);
  if (ctx->dev().type() == api::kXPU3) return xpu3_wrapper(ctx, x, y, n);
  WRAPPER_UNIMPLEMENTED(ctx);
}

}  // namespace plugin
"""

_INPUTS = '''\
"""Inputs of NAME: arrays of any length."""

import numpy as np


def arguments(rng):  # by the names of the wrapper's parameters after the context
    n = int(rng.integers(1, 30000))
    x = rng.normal(size=n).astype(np.float32)
    return {"x": x, "y": np.zeros_like(x), "n": n}
'''

FILES = {"{}.xpu": _KERNEL, "{}.cpp": _WRAPPER, "{}_inputs.py": _INPUTS}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The operator's name, and where to write."""
    parser.add_argument("name", metavar="NAME", help="C++ name of the operator and of its files")
    parser.add_argument("--folder", metavar="DIR", type=Path, default=Path(), help="output folder (default: here)")


def run(args: argparse.Namespace, output: Output) -> int:
    """Write the files; always 0.

    Raises:
        CompileError: not a C++ name, a missing folder, or an existing file.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", args.name):
        raise CompileError(f"expected a name in C++, got '{args.name}'; use letters, digits and _")
    if not args.folder.is_dir():
        raise CompileError(f"expected --folder to exist, got {args.folder}; make the folder first")
    files = {args.folder / pattern.format(args.name): text for pattern, text in FILES.items()}
    for path in files:
        if path.exists():
            raise CompileError(f"expected a new file, got {path}, which exists; choose another name or folder")
    for path, text in files.items():
        path.write_text(text.replace("NAME", args.name), encoding="utf-8")
    kernel, wrapper, inputs = map(str, files)
    command = f"specdec-hal xpu test {wrapper} {kernel} --wrapper plugin::{args.name} --inputs {inputs}"
    if output.json:
        output.document({"files": [kernel, wrapper, inputs], "command": command})
    else:
        print(command)
    return 0
