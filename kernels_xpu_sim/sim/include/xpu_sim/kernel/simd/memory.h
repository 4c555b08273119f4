// Loads and stores. Addresses must be multiples of 64 bytes.
#pragma once

#include "xpu_sim/kernel/convert.h"
#include "xpu_sim/kernel/dma.h"
#include "xpu_sim/kernel/simd/types.h"
#include "xpu_sim/site.h"

namespace xpu_sim::detail {

[[gnu::cold]] void simd_unaligned(const void* address, Site site);
bool masked_stores_write_zero();

XPU_SIM_SIMD void need_alignment(const void* p, Site site) {
  if (__builtin_expect(reinterpret_cast<uintptr_t>(p) & 63, 0)) simd_unaligned(p, site);
}

// Checking builds see the accesses of a vector itself, not those of a structure that is copied; and the strict one asks
// for the room in the object, where the compiler knows that.
#if defined(XPU_SIM_SM_REDZONES)
template <class RAW>
struct __attribute__((packed, may_alias)) Loose {
  RAW raw;
};
#endif

template <class V>
XPU_SIM_SIMD V load(const void* p, Site site) {
  need_alignment(p, site);
  V v;
#if defined(XPU_SIM_STRICT)
  need_room("vector load", p, sizeof v, site);
#endif
#if defined(XPU_SIM_SM_REDZONES)
  v.raw = static_cast<const Loose<typename V::Raw>*>(p)->raw;
#else
  __builtin_memcpy(&v, p, sizeof v);
#endif
  return v;
}

template <class V>
XPU_SIM_SIMD void store(void* p, V v, Site site) {
  need_alignment(p, site);
#if defined(XPU_SIM_STRICT)
  need_room("vector store", p, sizeof v, site);
#endif
#if defined(XPU_SIM_SM_REDZONES)
  static_cast<Loose<typename V::Raw>*>(p)->raw = v.raw;
#else
  __builtin_memcpy(p, &v, sizeof v);
#endif
}

// Only the lanes whose mask bit is 1: the others keep what memory has.
template <class V>
XPU_SIM_SIMD void store_lanes(void* p, const V& v, MaskOf<V> mask, Site site) {
  need_alignment(p, site);
  ElementOf<V>* const to = static_cast<ElementOf<V>*>(p);
  for (int i = 0; i < Lanes<V>::count; ++i) {
    if (mask >> i & 1) to[i] = v[i];
  }
}

template <class V>
XPU_SIM_SIMD void store_or_zero(void* p, const V& v, MaskOf<V> mask, Site site) {
  if (!masked_stores_write_zero()) return store_lanes(p, v, mask, site);
  store(p, select(lanes<V>(mask), v, V{}), site);
}

// Two neighbouring vectors. A mask has the first one's bits lowest; a vector without bits is not loaded.
template <class V>
XPU_SIM_SIMD void load2(const void* p, V& v0, V& v1, Site site) {
  v0 = load<V>(p, site);
  v1 = load<V>(static_cast<const char*>(p) + 64, site);
}
template <class V>
XPU_SIM_SIMD void load2(const void* p, V& v0, V& v1, unsigned mask, Site site) {
  const MaskOf<V> low = static_cast<MaskOf<V>>(mask & 0xFFFFu), high = static_cast<MaskOf<V>>(mask >> 16);
  v0 = v1 = V{};
  if (low) v0 = select(lanes<V>(low), load<V>(p, site), V{});
  if (high) v1 = select(lanes<V>(high), load<V>(static_cast<const char*>(p) + 64, site), V{});
}
template <class V>
XPU_SIM_SIMD void store2(void* p, const V& v0, const V& v1, Site site) {
  store(p, v0, site);
  store(static_cast<char*>(p) + 64, v1, site);
}
template <class V>
XPU_SIM_SIMD void store2(void* p, const V& v0, const V& v1, unsigned mask, Site site) {
  store_or_zero(p, v0, static_cast<MaskOf<V>>(mask & 0xFFFFu), site);
  store_or_zero(static_cast<char*>(p) + 64, v1, static_cast<MaskOf<V>>(mask >> 16), site);
}

// Lane i is the element, or goes to the element, that lies `offsets[i]` bytes after p.
template <class V, class O>
XPU_SIM_SIMD V gather(const void* p, const O& offsets, const V& hold, MaskOf<V> mask) {
  V v = hold;
  for (int i = 0; i < Lanes<V>::count; ++i) {
    const char* const at = static_cast<const char*>(p) + offsets.raw[i];
    if (mask >> i & 1) v.raw[i] = *reinterpret_cast<const ElementOf<V>*>(at);
  }
  return v;
}
template <class V, class O>
XPU_SIM_SIMD void scatter(void* p, const V& v, const O& offsets, MaskOf<V> mask) {
  for (int i = 0; i < Lanes<V>::count; ++i) {
    char* const at = static_cast<char*>(p) + offsets.raw[i];
    if (mask >> i & 1) *reinterpret_cast<ElementOf<V>*>(at) = v[i];
  }
}

// 32 narrow floats in one line of memory as two vectors of float32. `second`: where lane 0 of the second lies;
// `step`: how far apart neighbouring lanes lie.
template <class H>
XPU_SIM_SIMD void widen(const H* p, float32x16_t& v0, float32x16_t& v1, int second, int step, Site site) {
  H h[32];
  const uint16x32_t line = load<uint16x32_t>(p, site);
  __builtin_memcpy(h, &line, sizeof h);
  for (int i = 0; i < 16; ++i) {
    v0.raw[i] = static_cast<float>(h[step * i]);
    v1.raw[i] = static_cast<float>(h[second + step * i]);
  }
}
template <class H>
XPU_SIM_SIMD void narrow(H* p, const float32x16_t& v0, const float32x16_t& v1, int second, int step, unsigned mask,
                         Site site) {
  H h[32];
  for (int i = 0; i < 16; ++i) {
    h[step * i] = converted<H>(v0[i]);
    h[second + step * i] = converted<H>(v1[i]);
  }
  uint16x32_t line;
  __builtin_memcpy(&line, h, sizeof line);
  mask == ~0u ? store(p, line, site) : store_or_zero(p, line, mask, site);
}

}  // namespace xpu_sim::detail

// LM, SM and GSM differ in address only, so that the spellings do the same.
#define XPU_SIM_MEMORY(SPACE, V, T, M)                                                                                \
  XPU_SIM_SIMD V##_t vload_##SPACE##_##V(const void* p, XPU_SIM_SITE) {                                               \
    return ::xpu_sim::detail::load<V##_t>(p, xpu_sim_site);                                                           \
  }                                                                                                                   \
  XPU_SIM_SIMD V##_t vload_##SPACE##_##V##_mz(const void* p, M mask = static_cast<M>(-1), XPU_SIM_SITE) {             \
    return ::xpu_sim::detail::select(::xpu_sim::detail::lanes<V##_t>(mask),                                           \
                                     ::xpu_sim::detail::load<V##_t>(p, xpu_sim_site), V##_t{});                       \
  }                                                                                                                   \
  XPU_SIM_SIMD V##_t vload_##SPACE##_##V##_mh(const void* p, V##_t hold, M mask = static_cast<M>(-1), XPU_SIM_SITE) { \
    return ::xpu_sim::detail::select(::xpu_sim::detail::lanes<V##_t>(mask),                                           \
                                     ::xpu_sim::detail::load<V##_t>(p, xpu_sim_site), hold);                          \
  }                                                                                                                   \
  XPU_SIM_SIMD void vstore_##SPACE##_##V(void* p, V##_t v, XPU_SIM_SITE) {                                            \
    ::xpu_sim::detail::store(p, v, xpu_sim_site);                                                                     \
  }                                                                                                                   \
  XPU_SIM_SIMD void vstore_##SPACE##_##V##_mh(void* p, V##_t v, M mask = static_cast<M>(-1), XPU_SIM_SITE) {          \
    ::xpu_sim::detail::store_lanes(p, v, mask, xpu_sim_site);                                                         \
  }                                                                                                                   \
  XPU_SIM_SIMD void vstore_##SPACE##_##V##_mz(void* p, V##_t v, M mask = static_cast<M>(-1), XPU_SIM_SITE) {          \
    ::xpu_sim::detail::store_or_zero(p, v, mask, xpu_sim_site);                                                       \
  }                                                                                                                   \
  XPU_SIM_SIMD void vload2_##SPACE(const void* p, V##_t& v0, V##_t& v1, XPU_SIM_SITE) {                               \
    ::xpu_sim::detail::load2(p, v0, v1, xpu_sim_site);                                                                \
  }                                                                                                                   \
  XPU_SIM_SIMD void vstore2_##SPACE(void* p, V##_t v0, V##_t v1, XPU_SIM_SITE) {                                      \
    ::xpu_sim::detail::store2(p, v0, v1, xpu_sim_site);                                                               \
  }                                                                                                                   \
  /* The hardware may swap the two vectors; a kernel that uses these must not care. */                                \
  XPU_SIM_SIMD void vload2_##SPACE##_unordered(const void* p, V##_t& v0, V##_t& v1, XPU_SIM_SITE) {                   \
    ::xpu_sim::detail::load2(p, v1, v0, xpu_sim_site);                                                                \
  }                                                                                                                   \
  XPU_SIM_SIMD void vstore2_##SPACE##_unordered(void* p, V##_t v0, V##_t v1, XPU_SIM_SITE) {                          \
    ::xpu_sim::detail::store2(p, v1, v0, xpu_sim_site);                                                               \
  }
// The mask has 32 bits: for lanes of 32 bits only.
#define XPU_SIM_MASKED2(SPACE, V)                                                                                 \
  XPU_SIM_SIMD void vload2_##SPACE##_mz(const void* p, V##_t& v0, V##_t& v1, unsigned mask = ~0u, XPU_SIM_SITE) { \
    ::xpu_sim::detail::load2(p, v0, v1, mask, xpu_sim_site);                                                      \
  }                                                                                                               \
  XPU_SIM_SIMD void vstore2_##SPACE##_mz(void* p, V##_t v0, V##_t v1, unsigned mask = ~0u, XPU_SIM_SITE) {        \
    ::xpu_sim::detail::store2(p, v0, v1, mask, xpu_sim_site);                                                     \
  }
// 32 floats of 16 bits as two vectors of float32. Unordered: those at even places, and those at odd ones.
#define XPU_SIM_WIDENING(SPACE, H)                                                                                    \
  XPU_SIM_SIMD void vload2_##SPACE(const H* p, float32x16_t& v0, float32x16_t& v1, XPU_SIM_SITE) {                    \
    ::xpu_sim::detail::widen(p, v0, v1, 16, 1, xpu_sim_site);                                                         \
  }                                                                                                                   \
  XPU_SIM_SIMD void vload2_##SPACE##_mz(const H* p, float32x16_t& v0, float32x16_t& v1, unsigned mask = ~0u,          \
                                        XPU_SIM_SITE) {                                                               \
    ::xpu_sim::detail::widen(p, v0, v1, 16, 1, xpu_sim_site);                                                         \
    using namespace ::xpu_sim::detail;                                                                                \
    v0 = select(lanes<float32x16_t>(static_cast<int>(mask & 0xFFFFu)), v0, float32x16_t{});                           \
    v1 = select(lanes<float32x16_t>(static_cast<int>(mask >> 16)), v1, float32x16_t{});                               \
  }                                                                                                                   \
  XPU_SIM_SIMD void vstore2_##SPACE(H* p, float32x16_t v0, float32x16_t v1, XPU_SIM_SITE) {                           \
    ::xpu_sim::detail::narrow(p, v0, v1, 16, 1, ~0u, xpu_sim_site);                                                   \
  }                                                                                                                   \
  XPU_SIM_SIMD void vstore2_##SPACE##_mz(H* p, float32x16_t v0, float32x16_t v1, unsigned mask = ~0u, XPU_SIM_SITE) { \
    ::xpu_sim::detail::narrow(p, v0, v1, 16, 1, mask, xpu_sim_site);                                                  \
  }                                                                                                                   \
  XPU_SIM_SIMD void vload2_##SPACE##_unordered(const H* p, float32x16_t& v0, float32x16_t& v1, XPU_SIM_SITE) {        \
    ::xpu_sim::detail::widen(p, v0, v1, 1, 2, xpu_sim_site);                                                          \
  }                                                                                                                   \
  XPU_SIM_SIMD void vstore2_##SPACE##_unordered(H* p, float32x16_t v0, float32x16_t v1, XPU_SIM_SITE) {               \
    ::xpu_sim::detail::narrow(p, v0, v1, 1, 2, ~0u, xpu_sim_site);                                                    \
  }

// By an offset in bytes for each lane, as wide as the lanes.
#define XPU_SIM_INDEXED(SPACE, V, O, M)                                                                         \
  XPU_SIM_SIMD V##_t vgather_##SPACE##_##V(const void* p, O##_t offsets) {                                      \
    return ::xpu_sim::detail::gather(p, offsets, V##_t{}, static_cast<M>(-1));                                  \
  }                                                                                                             \
  XPU_SIM_SIMD V##_t vgather_##SPACE##_##V##_mz(const void* p, O##_t offsets, M mask = static_cast<M>(-1)) {    \
    return ::xpu_sim::detail::gather(p, offsets, V##_t{}, mask);                                                \
  }                                                                                                             \
  XPU_SIM_SIMD V##_t vgather_##SPACE##_##V##_mh(const void* p, O##_t offsets, V##_t hold,                       \
                                                M mask = static_cast<M>(-1)) {                                  \
    return ::xpu_sim::detail::gather(p, offsets, hold, mask);                                                   \
  }                                                                                                             \
  XPU_SIM_SIMD void vscatter_##SPACE##_##V(void* p, V##_t v, O##_t offsets) {                                   \
    ::xpu_sim::detail::scatter(p, v, offsets, static_cast<M>(-1));                                              \
  }                                                                                                             \
  XPU_SIM_SIMD void vscatter_##SPACE##_##V##_mh(void* p, V##_t v, O##_t offsets, M mask = static_cast<M>(-1)) { \
    ::xpu_sim::detail::scatter(p, v, offsets, mask);                                                            \
  }

#define XPU_SIM_SPACE(SPACE)                           \
  XPU_SIM_VECTORS(XPU_SIM_MEMORY_##SPACE)              \
  XPU_SIM_MASKED2(SPACE, int32x16)                     \
  XPU_SIM_MASKED2(SPACE, uint32x16)                    \
  XPU_SIM_MASKED2(SPACE, float32x16)                   \
  XPU_SIM_WIDENING(SPACE, float16)                     \
  XPU_SIM_WIDENING(SPACE, bfloat16)                    \
  XPU_SIM_INDEXED(SPACE, int16x32, int16x32, unsigned) \
  XPU_SIM_INDEXED(SPACE, int32x16, int32x16, int)      \
  XPU_SIM_INDEXED(SPACE, uint32x16, int32x16, int)     \
  XPU_SIM_INDEXED(SPACE, float32x16, int32x16, int)
#define XPU_SIM_MEMORY_lm(V, T, M) XPU_SIM_MEMORY(lm, V, T, M)
#define XPU_SIM_MEMORY_sm(V, T, M) XPU_SIM_MEMORY(sm, V, T, M)
#define XPU_SIM_MEMORY_gsm(V, T, M) XPU_SIM_MEMORY(gsm, V, T, M)
XPU_SIM_SPACE(lm)
XPU_SIM_SPACE(sm)
XPU_SIM_SPACE(gsm)
#undef XPU_SIM_MEMORY_gsm
#undef XPU_SIM_MEMORY_sm
#undef XPU_SIM_MEMORY_lm
#undef XPU_SIM_SPACE
#undef XPU_SIM_INDEXED
#undef XPU_SIM_WIDENING
#undef XPU_SIM_MASKED2
#undef XPU_SIM_MEMORY
