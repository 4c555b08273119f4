// How a kernel file registers an op: after its kernels it defines `void op(const OpArgs&, const LaunchOptions&)`, which
// launches them, and ends with SPECDEC_OP(op, kUnlimited) or its own limits.
#pragma once

#include "launch.h"
#include "specdec/contract.h"
#include "specdec_ops/signature.h"

namespace specdec::xpu {

constexpr List<Limit> kUnlimited;

using Context = const LaunchOptions&;

// ffi/op.cc
int bind_op(const OpSignature& op, void (*launch)(const void* args, Context options), const void* given, int count,
            void* plan);
int list_limits(const OpSignature& op, List<Limit> limits, void* map);

}  // namespace specdec::xpu
