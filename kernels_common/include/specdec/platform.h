// Differences between host and device compilers (CUDA, XPU), and float32 arithmetic rounded after every operation.
#pragma once

#include <cfloat>
#include <cstdint>
#include <cstring>

// SPECDEC_APART: not inlined if local memory is the stack.
#if defined(__CUDACC__)
#define SPECDEC_HD __host__ __device__ __forceinline__
#define SPECDEC_APART SPECDEC_HD
#elif defined(__xpu__)
#define SPECDEC_HD __device__ inline
#define SPECDEC_APART __device__ inline __attribute__((noinline))
#else
#define SPECDEC_HD inline
#define SPECDEC_APART inline
#endif

// SPECDEC_VECTOR: a function whose loops are also compiled for wider vectors; the version is chosen when the library is
// loaded. Checking builds have one version, since the choice precedes their initialisation.
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && defined(__x86_64__) && \
    defined(__gnu_linux__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// static: some releases of GCC 13 fail with an internal error where versions of a function are merged by the linker.
#define SPECDEC_VECTOR static SPECDEC_APART __attribute__((noinline, flatten, target_clones("avx2", "default")))
#elif defined(__GNUC__) && !defined(__CUDACC__)
#define SPECDEC_VECTOR SPECDEC_APART __attribute__((noinline, flatten))
#else
#define SPECDEC_VECTOR SPECDEC_APART
#endif

#if defined(__FAST_MATH__)
#error "specdec: compile without -ffast-math; results must be bit-identical on every backend"
#endif

namespace specdec {

#if !defined(__CUDA_ARCH__)
static_assert(FLT_EVAL_METHOD == 0, "float32 operations must be evaluated in float32 (no x87)");
#endif

// One IEEE operation each. On the device the intrinsics cannot be contracted into a fused multiply-add nor
// approximated, whatever the flags; on the host compile with -ffp-contract=off.
SPECDEC_HD float add_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

SPECDEC_HD float sub_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fsub_rn(a, b);
#else
  return a - b;
#endif
}

SPECDEC_HD float mul_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

// a * b + c where a * b is exact: with one rounding or two the same bits.
SPECDEC_HD float fma_exact(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return a * b + c;
#endif
}

// a * b + c, rounded once.
SPECDEC_HD float fma_rn(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

SPECDEC_HD float div_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

SPECDEC_HD float sqrt_rn(float x) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(x);
#else
  return __builtin_sqrtf(x);
#endif
}

// Round to nearest even.
SPECDEC_HD float u64_to_f32(uint64_t x) {
#if defined(__CUDA_ARCH__)
  return __ull2float_rn(x);
#else
  return static_cast<float>(x);
#endif
}

// The integer part of x in [0, 2^63).
SPECDEC_HD uint64_t f32_to_u64(float x) {
#if defined(__CUDA_ARCH__)
  return static_cast<uint64_t>(__float2ll_rz(x));
#else
  return static_cast<uint64_t>(static_cast<int64_t>(x));
#endif
}

SPECDEC_HD uint32_t f32_bits(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
#endif
}

SPECDEC_HD float f32_from_bits(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
#endif
}

// High 64 bits of the 128-bit product.
SPECDEC_HD uint64_t mulhi64(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__)
  return __umul64hi(a, b);
#elif defined(__SIZEOF_INT128__)
  __extension__ using u128 = unsigned __int128;
  return static_cast<uint64_t>((static_cast<u128>(a) * b) >> 64);
#else
  const uint64_t a0 = a & 0xFFFFFFFFu, a1 = a >> 32, b0 = b & 0xFFFFFFFFu, b1 = b >> 32;
  const uint64_t cross = a1 * b0 + (a0 * b0 >> 32);
  const uint64_t other = a0 * b1 + (cross & 0xFFFFFFFFu);
  return a1 * b1 + (cross >> 32) + (other >> 32);
#endif
}

// Number of one bits below the lowest zero bit.
SPECDEC_HD int count_trailing_ones(uint32_t x) {
#if defined(__CUDA_ARCH__)
  return x == 0xFFFFFFFFu ? 32 : __ffs(static_cast<int>(~x)) - 1;
#else
  return x == 0xFFFFFFFFu ? 32 : __builtin_ctz(~x);
#endif
}

// Number of zero bits above the highest set bit; x > 0.
SPECDEC_HD int count_leading_zeros(uint64_t x) {
#if defined(__CUDA_ARCH__)
  return __clzll(static_cast<long long>(x));
#else
  return __builtin_clzll(x);
#endif
}

}  // namespace specdec
