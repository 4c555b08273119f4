// Fences order one core's own stores and copies; barriers make cores wait. Neither implies the other: to publish, each
// writer fences, then all meet at a barrier.
#pragma once

#include <cstring>

#include "xpu_sim/kernel/core.h"
#include "xpu_sim/site.h"

namespace xpu_sim::detail {
void fence(int mask, Site site);
}
// LM = 1, SM = 2, GM = 4
inline __attribute__((always_inline)) void mfence(int mask, XPU_SIM_SITE) {
#if XPU_SIM_INLINE
  if (::xpu_sim::detail::fence_here(xpu_sim_site)) return;
#endif
  ::xpu_sim::detail::fence(mask, xpu_sim_site);
}
#define XPU_SIM_FENCE(NAME, MASK) \
  inline __attribute__((always_inline)) void NAME(XPU_SIM_SITE) { mfence(MASK, xpu_sim_site); }
XPU_SIM_FENCE(mfence, 7)
XPU_SIM_FENCE(mfence_lm, 1)
XPU_SIM_FENCE(mfence_sm, 2)
XPU_SIM_FENCE(mfence_gm, 4)
XPU_SIM_FENCE(mfence_lm_sm, 3)
XPU_SIM_FENCE(mfence_lm_gm, 5)
XPU_SIM_FENCE(mfence_sm_gm, 6)
#undef XPU_SIM_FENCE

void sync_cluster(XPU_SIM_SITE);  // all cores of the cluster; cores that have returned count as arrived
void sync_all(XPU_SIM_SITE);      // the same: there is no barrier across clusters
void sync_local(XPU_SIM_SITE);    // the cores of one group
void sync_group(int mask, XPU_SIM_SITE);  // bit g: the cores of group g

// Who am I: the values of the launch, not of the hardware.
#if XPU_SIM_INLINE
#define XPU_SIM_COORDINATE(NAME, MEMBER, OUTSIDE)               \
  inline int NAME() noexcept {                                  \
    const auto* const core = ::xpu_sim::detail::running_core(); \
    return core ? core->MEMBER : OUTSIDE;                       \
  }
#else
// Constant for the core that runs, hence `const`; and noexcept, so that the compiler may ask once, ahead of a loop.
#define XPU_SIM_COORDINATE(NAME, MEMBER, OUTSIDE) [[gnu::const]] int NAME() noexcept;
#endif
XPU_SIM_COORDINATE(core_id, id, -1)
XPU_SIM_COORDINATE(core_num, cores, 0)
XPU_SIM_COORDINATE(cluster_id, cluster, -1)
XPU_SIM_COORDINATE(cluster_num, clusters, 0)
#undef XPU_SIM_COORDINATE

// Atomics are pairs of load-linked and store-conditional on integers in SM, written as assembly in kernels:
//   loada.w  value, address
//   storea.w failed, value, address      (failed != 0: try again)
namespace xpu_sim::detail {
int load_linked(const int* address, Site site);
int store_conditional(int* address, int value, Site site);  // 0: stored
void ticket_lock(Site site);
void ticket_unlock(Site site);
}  // namespace xpu_sim::detail

#if defined(__x86_64__)
// Each is a call into the emulator that preserves every register. Operands may be any register, also one that a call
// would pass arguments in, hence by way of the stack, below the red zone. A result may be of any integer type, bool
// included: `mov` without a suffix takes its width from the register.
__asm__(
    ".ifndef xpu_sim_atomics_defined\n"
    ".set xpu_sim_atomics_defined, 1\n"
    ".macro loada.w value, address\n"
    "  leaq -144(%rsp), %rsp\n"
    "  movq \\address, (%rsp)\n"
    "  call xpu_sim_loada@PLT\n"
    "  mov 8(%rsp), \\value\n"
    "  leaq 144(%rsp), %rsp\n"
    ".endm\n"
    ".macro storea.w failed, value, address\n"
    "  leaq -144(%rsp), %rsp\n"
    "  movq \\address, (%rsp)\n"
    "  movq $0, 8(%rsp)\n"
    "  mov \\value, 8(%rsp)\n"
    "  call xpu_sim_storea@PLT\n"
    "  mov 8(%rsp), \\failed\n"
    "  leaq 144(%rsp), %rsp\n"
    ".endm\n"
    ".endif\n");
#endif

inline int SM2REG_atomic(const int* address, XPU_SIM_SITE) {
  return ::xpu_sim::detail::load_linked(address, xpu_sim_site);
}

// 0: stored; 1: failed, try again from SM2REG_atomic.
inline int REG2SM_atomic(int* address, int value, XPU_SIM_SITE) {
  return ::xpu_sim::detail::store_conditional(address, value, xpu_sim_site);
}

namespace xpu_sim::detail {

template <class T>
inline T atomic_add(T* address, T value, Site site) {
  int* const word = reinterpret_cast<int*>(address);
  for (;;) {
    int bits = load_linked(word, site);
    T old;
    std::memcpy(&old, &bits, sizeof old);
    const T sum = old + value;
    std::memcpy(&bits, &sum, sizeof bits);
    if (store_conditional(word, bits, site) == 0) return old;
  }
}

}  // namespace xpu_sim::detail

// The old value.
inline int atomicadd(int* address, int value, XPU_SIM_SITE) {
  return ::xpu_sim::detail::atomic_add(address, value, xpu_sim_site);
}
inline float atomicadd(float* address, float value, XPU_SIM_SITE) {
  return ::xpu_sim::detail::atomic_add(address, value, xpu_sim_site);
}

// The cluster's one lock.
inline void ticket_lock_mix(XPU_SIM_SITE) { ::xpu_sim::detail::ticket_lock(xpu_sim_site); }
inline void unlock_mix(XPU_SIM_SITE) { ::xpu_sim::detail::ticket_unlock(xpu_sim_site); }
inline void ticket_unlock_mix(XPU_SIM_SITE) { ::xpu_sim::detail::ticket_unlock(xpu_sim_site); }
