// Functions of numbers that are not in the C++ library, or have another name there.
#pragma once

#include <cmath>

#include "xpu_sim/kernel/types.h"

inline float __half2float(float16 x) { return x; }
inline float __bfloat162float(bfloat16 x) { return x; }
inline float float162float(float16 x) { return x; }
inline float bfloat162float(bfloat16 x) { return x; }
inline float16 __float2half(float x) { return x; }
inline float16 __float2half_rn(float x) { return x; }
inline float16 float2float16(float x) { return x; }
inline bfloat16 __float2bfloat16(float x) { return x; }
inline bfloat16 __float2bfloat16_rn(float x) { return x; }
inline bfloat16 float2bfloat16(float x) { return x; }

inline float rsqrt(float x) { return 1.0f / std::sqrt(x); }
inline float fast_erf(float x) { return std::erf(x); }
inline float16 hexp(float16 x) { return std::exp(static_cast<float>(x)); }
