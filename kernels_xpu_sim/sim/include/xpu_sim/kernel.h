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
#include <type_traits>

// clang-format off: each needs those before it
#include "xpu_sim/kernel/strict.h"
#include "xpu_sim/kernel/qualifiers.h"
#include "xpu_sim/kernel/types.h"
#include "xpu_sim/kernel/coordinates.h"
#include "xpu_sim/kernel/dma.h"
#include "xpu_sim/kernel/sync.h"
#include "xpu_sim/kernel/arithmetic.h"
#include "xpu_sim/kernel/partition.h"
#include "xpu_sim/kernel/cast.h"
#include "xpu_sim/kernel/buffers.h"
#include "xpu_sim/kernel/atomics.h"
#include "xpu_sim/kernel/primitives.h"
#include "xpu_sim/kernel/simd.h"
// clang-format on
