// Typed buffers with their transfers, and double and triple buffering over them.
#pragma once

#include "xpu_sim/kernel/dma.h"

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
