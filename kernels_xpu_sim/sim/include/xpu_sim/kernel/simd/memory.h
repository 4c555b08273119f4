// Loads and stores. Addresses must be multiples of 64 bytes.
#pragma once

#include "xpu_sim/kernel/simd/types.h"
#include "xpu_sim/site.h"

namespace xpu_sim::detail {

[[gnu::cold]] void simd_unaligned(const void* address, Site site);
bool masked_stores_write_zero();

XPU_SIM_SIMD void need_alignment(const void* p, Site site) {
  if (__builtin_expect(reinterpret_cast<uintptr_t>(p) & 63, 0)) simd_unaligned(p, site);
}

template <class V>
XPU_SIM_SIMD V load(const void* p, Site site) {
  need_alignment(p, site);
  V v;
  __builtin_memcpy(&v, __builtin_assume_aligned(p, 64), sizeof v);
  return v;
}

template <class V>
XPU_SIM_SIMD void store(void* p, V v, Site site) {
  need_alignment(p, site);
  __builtin_memcpy(__builtin_assume_aligned(p, 64), &v, sizeof v);
}

}  // namespace xpu_sim::detail

// LM and SM differ in address only, so both spellings do the same.
#define XPU_SIM_MEMORY(SPACE, T, V)                                                                            \
  XPU_SIM_SIMD V##_t vload_##SPACE##_##V(const void* p, XPU_SIM_SITE) {                                        \
    return ::xpu_sim::detail::load<V##_t>(p, xpu_sim_site);                                                    \
  }                                                                                                            \
  XPU_SIM_SIMD V##_t vload_##SPACE##_##V##_mz(const void* p, int mask, XPU_SIM_SITE) {                         \
    const V##_t v = ::xpu_sim::detail::load<V##_t>(p, xpu_sim_site);                                           \
    return ::xpu_sim::detail::select(::xpu_sim::detail::lanes32(mask), v, V##_t{});                            \
  }                                                                                                            \
  XPU_SIM_SIMD V##_t vload_##SPACE##_##V##_mh(const void* p, V##_t hold, int mask, XPU_SIM_SITE) {             \
    const V##_t v = ::xpu_sim::detail::load<V##_t>(p, xpu_sim_site);                                           \
    return ::xpu_sim::detail::select(::xpu_sim::detail::lanes32(mask), v, hold);                               \
  }                                                                                                            \
  XPU_SIM_SIMD void vstore_##SPACE##_##V(void* p, V##_t v, XPU_SIM_SITE) {                                     \
    ::xpu_sim::detail::store(p, v, xpu_sim_site);                                                              \
  }                                                                                                            \
  XPU_SIM_SIMD void vstore_##SPACE##_##V##_mh(void* p, V##_t v, int mask, XPU_SIM_SITE) {                      \
    ::xpu_sim::detail::need_alignment(p, xpu_sim_site);                                                        \
    T* const to = static_cast<T*>(p);                                                                          \
    for (int i = 0; i < 16; ++i) {                                                                             \
      if (mask >> i & 1) to[i] = v[i];                                                                         \
    }                                                                                                          \
  }                                                                                                            \
  XPU_SIM_SIMD void vstore_##SPACE##_##V##_mz(void* p, V##_t v, int mask, XPU_SIM_SITE) {                      \
    if (!::xpu_sim::detail::masked_stores_write_zero()) {                                                      \
      return vstore_##SPACE##_##V##_mh(p, v, mask, xpu_sim_site);                                              \
    }                                                                                                          \
    ::xpu_sim::detail::store(p, ::xpu_sim::detail::select(::xpu_sim::detail::lanes32(mask), v, V##_t{}),       \
                             xpu_sim_site);                                                                    \
  }

XPU_SIM_MEMORY(lm, int32_t, int32x16)
XPU_SIM_MEMORY(lm, float, float32x16)
XPU_SIM_MEMORY(sm, int32_t, int32x16)
XPU_SIM_MEMORY(sm, float, float32x16)
#undef XPU_SIM_MEMORY

// Bytes whose mask bit is 0 keep what memory has.
XPU_SIM_SIMD void vstore_lm_int8x64_mh(void* p, int8x64_t v, unsigned long long mask, XPU_SIM_SITE) {
  ::xpu_sim::detail::need_alignment(p, xpu_sim_site);
  int8_t* const to = static_cast<int8_t*>(p);
  for (int i = 0; i < 64; ++i) {
    if (mask >> i & 1) to[i] = v[i];
  }
}

// Two vectors: 32 elements of 32 bits. Bits 0-15 of the mask are the first vector's.
#define XPU_SIM_MEMORY2(SPACE, V)                                                                              \
  XPU_SIM_SIMD void vload2_##SPACE(const void* p, V& v0, V& v1, XPU_SIM_SITE) {                                \
    v0 = ::xpu_sim::detail::load<V>(p, xpu_sim_site);                                                          \
    v1 = ::xpu_sim::detail::load<V>(static_cast<const char*>(p) + 64, xpu_sim_site);                           \
  }                                                                                                            \
  XPU_SIM_SIMD void vload2_##SPACE##_mz(const void* p, V& v0, V& v1, unsigned mask, XPU_SIM_SITE) {            \
    const int low = static_cast<int>(mask & 0xFFFFu), high = static_cast<int>(mask >> 16);                     \
    v0 = v1 = V{};                                                                                             \
    if (low) {                                                                                                 \
      v0 = ::xpu_sim::detail::load<V>(p, xpu_sim_site);                                                        \
      v0 = ::xpu_sim::detail::select(::xpu_sim::detail::lanes32(low), v0, V{});                                \
    }                                                                                                          \
    if (high) {                                                                                                \
      v1 = ::xpu_sim::detail::load<V>(static_cast<const char*>(p) + 64, xpu_sim_site);                         \
      v1 = ::xpu_sim::detail::select(::xpu_sim::detail::lanes32(high), v1, V{});                               \
    }                                                                                                          \
  }                                                                                                            \
  XPU_SIM_SIMD void vstore2_##SPACE(void* p, V v0, V v1, XPU_SIM_SITE) {                                       \
    ::xpu_sim::detail::store(p, v0, xpu_sim_site);                                                             \
    ::xpu_sim::detail::store(static_cast<char*>(p) + 64, v1, xpu_sim_site);                                    \
  }

XPU_SIM_MEMORY2(lm, int32x16_t)
XPU_SIM_MEMORY2(lm, float32x16_t)
XPU_SIM_MEMORY2(sm, int32x16_t)
XPU_SIM_MEMORY2(sm, float32x16_t)
#undef XPU_SIM_MEMORY2

// The hardware may swap the two vectors; a kernel that uses it must not care.
XPU_SIM_SIMD void vload2_lm_unordered(const void* p, float32x16_t& v0, float32x16_t& v1, XPU_SIM_SITE) {
  vload2_lm(p, v1, v0, xpu_sim_site);
}
XPU_SIM_SIMD void vload2_lm_unordered(const void* p, int32x16_t& v0, int32x16_t& v1, XPU_SIM_SITE) {
  vload2_lm(p, v1, v0, xpu_sim_site);
}
