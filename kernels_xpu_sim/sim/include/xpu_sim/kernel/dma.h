// Copies between global memory and the memories of a cluster. The plain form has finished when it returns, and so have
// the core's earlier asynchronous copies of the same kind; _ASYNC only issues: fence before using the local side.
#pragma once

#include <cstddef>
#include <cstdint>

#include "xpu_sim/kernel/room.h"
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

}  // namespace xpu_sim::detail

// Byte counts are wider here than on the device, so that a negative or overflowing one is seen as such.
#define XPU_SIM_COPY_(NAME, RUN, FROM, TO, LOCAL)                                                                      \
  namespace xpu_sim::detail {                                                                                          \
  void RUN(const void* FROM, void* TO, long long bytes, Site site);                                                    \
  }                                                                                                                    \
  inline __attribute__((always_inline)) void NAME(const void* FROM, void* TO, long long bytes, XPU_SIM_SITE) {         \
    ::xpu_sim::detail::need_room(#NAME, LOCAL, bytes, xpu_sim_site);                                                   \
    ::xpu_sim::detail::RUN(FROM, TO, bytes, xpu_sim_site);                                                             \
  }
#define XPU_SIM_COPY(NAME, RUN, FROM, TO, LOCAL)                                                                       \
  XPU_SIM_COPY_(NAME, copy_##RUN, FROM, TO, LOCAL)                                                                     \
  XPU_SIM_COPY_(NAME##_ASYNC, issue_##RUN, FROM, TO, LOCAL)

XPU_SIM_COPY(GM2LM, gm2lm, gm, lm, lm)
XPU_SIM_COPY(LM2GM, lm2gm, lm, gm, lm)
XPU_SIM_COPY(GM2SM, gm2sm, gm, sm, sm)
XPU_SIM_COPY(SM2GM, sm2gm, sm, gm, sm)
// Group-shared memory: launches of at most 16 cores, one per group.
XPU_SIM_COPY(GM2GSM, gm2gsm, gm, gsm, gsm)
XPU_SIM_COPY(GSM2GM, gsm2gm, gsm, gm, gsm)
#undef XPU_SIM_COPY
#undef XPU_SIM_COPY_
