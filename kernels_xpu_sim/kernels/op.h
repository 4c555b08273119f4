// How a kernel file registers an op: after its kernels it defines `void op(const OpArgs&, const LaunchOptions&)`, which
// launches them, and ends with SPECDEC_OP(op, kUnlimited) or its own limits; or SPECDEC_ITEMS_OP does both.
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

// An op of one kernel, the last argument, whose items any core can take: EACH of them before the next core is used.
// `a`: the op's arguments.
#define SPECDEC_ITEMS_OP(NAME, ARGS, ITEMS, EACH, ...)                                                           \
  void NAME(const ARGS& a, const LaunchOptions& options) { launch_items(options, ITEMS, EACH, __VA_ARGS__, a); } \
  SPECDEC_OP(NAME, kUnlimited)

}  // namespace specdec::xpu
