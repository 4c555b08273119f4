// The 512-bit vectors of a core, as far as kernels for speculative decoding use them.
//
// Names: v(ector) or s(calar) operands, operation, element type x lanes, then what happens to lanes whose mask bit is
// 0: _mz makes them zero (a store writes zero), _mh keeps `hold` (a store keeps memory).
#pragma once

// clang-format off: each needs those before it
#include "xpu_sim/kernel/simd/types.h"
#include "xpu_sim/kernel/simd/memory.h"
#include "xpu_sim/kernel/simd/arithmetic.h"
#include "xpu_sim/kernel/simd/compare.h"
#include "xpu_sim/kernel/simd/lanes.h"
// clang-format on
