// How a kernel file makes an op known: it defines `void op(const OpArgs&, cudaStream_t)`, which enqueues on a stream of
// the current device and returns at once, and ends with SPECDEC_OP(op, kLimits).
#pragma once

#include <cuda_runtime_api.h>

#include "check.h"
#include "specdec/contract.h"
#include "specdec_ops/signature.h"

namespace specdec::cuda {

// The largest calls.
constexpr Limit kLimits[] = {{"M", served::kM}, {"S", served::kS}, {"L", served::kL}, {"V", served::kV}};

using Context = cudaStream_t;

// ffi/op.cc
int bind_op(const OpSignature& op, void (*launch)(const void* args, Context stream), const void* given, int count,
            void* plan);
int list_limits(const OpSignature& op, List<Limit> limits, void* map);

}  // namespace specdec::cuda
