// Copies between global memory and the memories of a cluster. The plain form has finished when it returns, and so have
// the core's earlier asynchronous copies of the same kind; _ASYNC only issues: fence before using the local side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "xpu_sim/kernel/core.h"
#include "xpu_sim/kernel/qualifiers.h"
#include "xpu_sim/site.h"

namespace xpu_sim::detail {

[[gnu::cold]] void beyond_object(const char* operation, uintptr_t local, long long bytes, size_t room, Site site);

inline __attribute__((always_inline)) void need_room(const char* operation, const void* local, long long bytes,
                                                     Site site) {
  const size_t room = XPU_SIM_ROOM(local);
  if (__builtin_expect(bytes > 0 && static_cast<size_t>(bytes) > room, 0)) {
    beyond_object(operation, reinterpret_cast<uintptr_t>(local), bytes, room, site);
  }
}

// The elements of what a pointer points to, as far as its type tells: 1 for untyped memory and structures, of which a
// part may well be copied.
template <class T>
constexpr long long element_bytes() {
  using E = std::remove_cv_t<std::remove_all_extents_t<T>>;
  if constexpr (std::is_arithmetic_v<E> || std::is_enum_v<E> || std::is_pointer_v<E>) {
    return sizeof(E);
  } else {
    return 1;
  }
}
template <>
constexpr long long element_bytes<void>() {
  return 1;
}
template <>
constexpr long long element_bytes<const void>() {
  return 1;
}

[[gnu::cold]] void narrow_store(const char* operation, const void* to, long long bytes, long long element, Site site);

// A copy into memory of numbers must fill whole ones. Bytes may be loaded into a buffer of any type.
template <class F, class T>
inline __attribute__((always_inline)) void need_whole_elements(const char* operation, const T* to, long long bytes,
                                                               bool to_gm, Site site) {
  if constexpr (element_bytes<T>() > 1) {
    if (!to_gm && element_bytes<F>() == 1) return;
    if (__builtin_expect(bytes % element_bytes<T>() != 0, 0)) {
      narrow_store(operation, to, bytes, element_bytes<T>(), site);
    }
  }
}

// Was it a copy of one number, done without a call?
template <Direction D>
inline __attribute__((always_inline)) bool done_here([[maybe_unused]] const void* from, [[maybe_unused]] void* to,
                                                     [[maybe_unused]] long long bytes, [[maybe_unused]] Site site) {
#if XPU_SIM_INLINE
  if constexpr (D == gm2lm || D == lm2gm) {
    if (__builtin_constant_p(bytes) && bytes > 0 && bytes <= 16 && (bytes & (bytes - 1)) == 0) {
      return copy_here<D>(from, to, static_cast<size_t>(bytes), site);
    }
  }
#endif
  return false;
}

// Tells the strict build what the next copy's source is made of: bytes, negative if they have a sign; 0: not known.
void copies_elements(int bytes);

template <class F>
inline __attribute__((always_inline)) void tell_source_elements() {
#if defined(XPU_SIM_STRICT)
  using E = std::remove_cv_t<std::remove_all_extents_t<F>>;
  if constexpr (std::is_integral_v<E> && sizeof(E) > 1) {
    copies_elements(std::is_signed_v<E> ? -static_cast<int>(sizeof(E)) : static_cast<int>(sizeof(E)));
  }
#endif
}

}  // namespace xpu_sim::detail

// Byte counts are wider here than on the device, so that a negative or overflowing one is seen as such.
#define XPU_SIM_COPY_(NAME, RUN, DIRECTION, FROM, TO, LOCAL)                                                   \
  namespace xpu_sim::detail {                                                                                  \
  void RUN(const void* FROM, void* TO, long long bytes, Site site);                                            \
  }                                                                                                            \
  inline __attribute__((always_inline)) void NAME(const void* FROM, void* TO, long long bytes, XPU_SIM_SITE) { \
    ::xpu_sim::detail::need_room(#NAME, LOCAL, bytes, xpu_sim_site);                                           \
    if (::xpu_sim::detail::done_here<::xpu_sim::DIRECTION>(FROM, TO, bytes, xpu_sim_site)) return;             \
    ::xpu_sim::detail::RUN(FROM, TO, bytes, xpu_sim_site);                                                     \
  }                                                                                                            \
  template <class F, class T>                                                                                  \
  inline __attribute__((always_inline)) void NAME(F* FROM, T* TO, long long bytes, XPU_SIM_SITE) {             \
    constexpr bool to_gm = #TO[0] == 'g' && #TO[1] == 'm';                                                     \
    ::xpu_sim::detail::need_whole_elements<F>(#NAME, TO, bytes, to_gm, xpu_sim_site);                          \
    if constexpr (to_gm) ::xpu_sim::detail::tell_source_elements<F>();                                         \
    NAME(static_cast<const void*>(FROM), static_cast<void*>(TO), bytes, xpu_sim_site);                         \
  }
#define XPU_SIM_COPY(NAME, RUN, FROM, TO, LOCAL)        \
  XPU_SIM_COPY_(NAME, copy_##RUN, RUN, FROM, TO, LOCAL) \
  XPU_SIM_COPY_(NAME##_ASYNC, issue_##RUN, RUN, FROM, TO, LOCAL)

XPU_SIM_COPY(GM2LM, gm2lm, gm, lm, lm)
XPU_SIM_COPY(LM2GM, lm2gm, lm, gm, lm)
XPU_SIM_COPY(GM2SM, gm2sm, gm, sm, sm)
XPU_SIM_COPY(SM2GM, sm2gm, sm, gm, sm)
// Group-shared memory: launches of at most 16 cores, one per group.
XPU_SIM_COPY(GM2GSM, gm2gsm, gm, gsm, gsm)
XPU_SIM_COPY(GSM2GM, gsm2gm, gsm, gm, gsm)
#undef XPU_SIM_COPY
#undef XPU_SIM_COPY_

// Typed buffers with their transfers, and double and triple buffering over them.
// A buffer in one of a core's memories; counts are elements.
#define XPU_SIM_BUFFER(NAME, MEMORY)                                                                                \
  template <class T>                                                                                                \
  struct NAME {                                                                                                     \
    using value_type = T;                                                                                           \
    T* ptr;                                                                                                         \
                                                                                                                    \
    NAME() = default;                                                                                               \
    explicit NAME(T* p) : ptr(p) {}                                                                                 \
    void gm_load(const T* gm, long long n, XPU_SIM_SITE) { GM2##MEMORY(gm, ptr, n * kBytes, xpu_sim_site); }        \
    void gm_load_async(const T* gm, long long n, XPU_SIM_SITE) {                                                    \
      GM2##MEMORY##_ASYNC(gm, ptr, n * kBytes, xpu_sim_site);                                                       \
    }                                                                                                               \
    void gm_store(T* gm, long long n, XPU_SIM_SITE) { MEMORY##2GM(ptr, gm, n * kBytes, xpu_sim_site); }             \
    void gm_store_async(T* gm, long long n, XPU_SIM_SITE) { MEMORY##2GM_ASYNC(ptr, gm, n * kBytes, xpu_sim_site); } \
                                                                                                                    \
   private:                                                                                                         \
    static constexpr long long kBytes = sizeof(T);                                                                  \
  };
XPU_SIM_BUFFER(LmPtr, LM)
XPU_SIM_BUFFER(SmPtr, SM)
XPU_SIM_BUFFER(GsmPtr, GSM)
#undef XPU_SIM_BUFFER

namespace xpu_sim::detail {

// COUNT buffers of N elements side by side. It is a P: loads and stores go to the current buffer.
template <int N, class P, int COUNT>
struct RingPtr : P {
  using T = typename P::value_type;

  explicit RingPtr(P first) : P(first), base_(first.ptr) {}
  explicit RingPtr(T* first) : P(first), base_(first) {}

  P next() const { return P(base_ + static_cast<long long>(following()) * N); }  // what toggle() will make current
  void toggle() {
    at_ = following();
    this->ptr = base_ + static_cast<long long>(at_) * N;
  }

 private:
  int following() const { return at_ + 1 == COUNT ? 0 : at_ + 1; }
  T* base_;
  int at_ = 0;
};

}  // namespace xpu_sim::detail

template <int N, class P>
struct DoublePtr : xpu_sim::detail::RingPtr<N, P, 2> {
  using xpu_sim::detail::RingPtr<N, P, 2>::RingPtr;
};

template <int N, class P>
struct TriplePtr : xpu_sim::detail::RingPtr<N, P, 3> {
  using xpu_sim::detail::RingPtr<N, P, 3>::RingPtr;
};
