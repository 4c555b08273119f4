// The ops' host side on the simulated device.
#pragma once

#include "launch.h"
#include "specdec_ops/all.h"

namespace specdec::xpu {

// Widest draft_tokens that `propose` takes: base tokens and drafts share an int32 between its two launches.
constexpr int64_t kMostProposeWidth = 32767;

#define SPECDEC_DECLARE(op, Args) void op(const Args& args, const LaunchOptions& options);
SPECDEC_OPS(SPECDEC_DECLARE)
#undef SPECDEC_DECLARE

}  // namespace specdec::xpu
