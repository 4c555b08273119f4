// The XPU3 kernel dialect for a host compiler: everything a kernel source may name. Kernels include it through
// xpu/kernel/*.h. For the host side see xpu_sim/host.h.
#pragma once

// Reading C++17's special functions (std::beta) takes longer than all of the dialect, and no device has them.
#include <cstddef>
#undef _GLIBCXX_USE_STD_SPEC_FUNCS

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <type_traits>

// clang-format off: each needs those before it
#include "xpu_sim/kernel/strict.h"
#include "xpu_sim/kernel/qualifiers.h"
#include "xpu_sim/kernel/types.h"
#include "xpu_sim/kernel/dma.h"
#include "xpu_sim/kernel/sync.h"
#include "xpu_sim/kernel/arithmetic.h"
#include "xpu_sim/kernel/math.h"
#include "xpu_sim/kernel/cast.h"
#include "xpu_sim/kernel/primitives.h"
// The 512-bit vectors of a core. Names: v(ector) or s(calar) operands, operation, element type x lanes, then what
// happens to lanes whose mask bit is 0: _mz makes them zero (a store writes zero), _mh keeps `hold` (a store, memory).
#include "xpu_sim/kernel/simd/types.h"
#include "xpu_sim/kernel/simd/memory.h"
#include "xpu_sim/kernel/simd/arithmetic.h"
#include "xpu_sim/kernel/simd/lanes.h"
// clang-format on
