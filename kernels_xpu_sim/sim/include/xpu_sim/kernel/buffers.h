// Typed buffers with their transfers, and double and triple buffering over them.
#pragma once

#include "xpu_sim/kernel/dma.h"

// A buffer in LM; counts are elements.
template <class T>
struct LmPtr {
  using value_type = T;
  T* ptr;

  LmPtr() = default;
  explicit LmPtr(T* p) : ptr(p) {}
  void gm_load(const T* gm, long long n, XPU_SIM_SITE) { GM2LM(gm, ptr, n * sizeof_t(), xpu_sim_site); }
  void gm_load_async(const T* gm, long long n, XPU_SIM_SITE) { GM2LM_ASYNC(gm, ptr, n * sizeof_t(), xpu_sim_site); }
  void gm_store(T* gm, long long n, XPU_SIM_SITE) { LM2GM(ptr, gm, n * sizeof_t(), xpu_sim_site); }
  void gm_store_async(T* gm, long long n, XPU_SIM_SITE) { LM2GM_ASYNC(ptr, gm, n * sizeof_t(), xpu_sim_site); }

 private:
  static constexpr long long sizeof_t() { return static_cast<long long>(sizeof(T)); }
};

// A buffer in SM.
template <class T>
struct SmPtr {
  using value_type = T;
  T* ptr;

  SmPtr() = default;
  explicit SmPtr(T* p) : ptr(p) {}
  void gm_load(const T* gm, long long n, XPU_SIM_SITE) { GM2SM(gm, ptr, n * sizeof_t(), xpu_sim_site); }
  void gm_load_async(const T* gm, long long n, XPU_SIM_SITE) { GM2SM_ASYNC(gm, ptr, n * sizeof_t(), xpu_sim_site); }
  void gm_store(T* gm, long long n, XPU_SIM_SITE) { SM2GM(ptr, gm, n * sizeof_t(), xpu_sim_site); }
  void gm_store_async(T* gm, long long n, XPU_SIM_SITE) { SM2GM_ASYNC(ptr, gm, n * sizeof_t(), xpu_sim_site); }

 private:
  static constexpr long long sizeof_t() { return static_cast<long long>(sizeof(T)); }
};

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
