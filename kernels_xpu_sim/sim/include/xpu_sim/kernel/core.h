// The running core's data for inlined builtins: coordinates, and enough for ordinary copies of one number. Unusual or
// wrong copies are left to the runtime, which checks again.
#pragma once

#include <cstddef>
#include <cstdint>

#include "xpu_sim/report.h"
#include "xpu_sim/site.h"

// The checking builds see every builtin as a call; so does what is no kernel.
#if defined(__x86_64__) && !defined(XPU_SIM_STRICT) && !defined(XPU_SIM_SM_REDZONES)
#define XPU_SIM_INLINE 1
#else
#define XPU_SIM_INLINE 0
#endif

namespace xpu_sim::rt {

// Every stack lies in a block of its own, aligned to the block's size, whose last word names the core that runs there.
// So the stack pointer alone identifies the running core. So would a thread-local variable, but in a library that is
// loaded late either slowly or, as static thread-local storage, at the price of all of the kernels' SM being static.
#if defined(__x86_64__)
constexpr size_t kBlockBytes = 512 * 1024;
#else
constexpr size_t kBlockBytes = 1024 * 1024;  // pages may be larger
#endif
// All blocks of all workers: address space, reserved and not used.
constexpr size_t kMaxThreads = 64;
constexpr int kStacksPerWorker = 65;  // a core's each, and one for what follows a fault
constexpr size_t kBlockSpaceBytes = kMaxThreads * kStacksPerWorker * kBlockBytes;
extern __attribute__((visibility("hidden"))) char* block_space;

// A core that calls the runtime this often without waiting may be waiting in a loop of its own, for another core.
constexpr uint32_t kCallsBeforeGivingWay = 1u << 16;

// Of a worker whose copies are done at once while nobody looks: no checker, no timeline.
struct Lane {
  // The GM that copies at lines with the same last bits found last: most stand for one array. For copies to GM: that
  // may be written.
  struct Hint {
    uintptr_t begin, end;
  };
  static constexpr unsigned kHints = 16;
  Hint from[kHints], to[kHints];
  bool as_built, production;  // whether copies out are fenced: as compiled, or else
  uint64_t fences;
  uint64_t small[directions][5];  // copies of 1 << i bytes,
  uint64_t second_lines[2];  // and those that reach into a second line of GM; [1]: to GM
};

struct CoreView {
  int id = -1, cluster = -1, cores = 0, clusters = 0;
  char* lm_top = nullptr;  // LM in use lies below this
  char* lm_low = nullptr;  // the lowest address seen in use
  Lane* lane = nullptr;  // nullptr: every copy is the runtime's
  uint64_t dma_bytes = 0;
  uint32_t calls = 0;  // into the runtime, since it last gave way
  Site last;  // its last builtin
};

}  // namespace xpu_sim::rt

#if XPU_SIM_INLINE

namespace xpu_sim::detail {

// As it is here: a variable-length array has moved it.
inline __attribute__((always_inline)) const char* stack_pointer() {
  const char* sp;
  __asm__ volatile("movq %%rsp, %0" : "=r"(sp));
  return sp;
}

// nullptr: no kernel is running.
inline __attribute__((always_inline)) rt::CoreView* running_core() {
  uintptr_t sp;
  __asm__("movq %%rsp, %0" : "=r"(sp));  // the same all through a kernel, as far as it matters
  if (__builtin_expect(sp - reinterpret_cast<uintptr_t>(rt::block_space) >= rt::kBlockSpaceBytes, 0)) return nullptr;
  return reinterpret_cast<rt::CoreView**>((sp | (rt::kBlockBytes - 1)) + 1)[-1];
}

// A builtin of such a lane begins, if nothing speaks against doing it here.
inline __attribute__((always_inline)) rt::CoreView* enter_here(const char* sp) {
  rt::CoreView* const core = running_core();
  if (__builtin_expect(!core || !core->lane || sp < core->lm_low || core->calls >= rt::kCallsBeforeGivingWay, 0)) {
    return nullptr;
  }
  return core;
}

inline __attribute__((always_inline)) bool fence_here(Site site) {
  rt::CoreView* const core = enter_here(stack_pointer());
  if (!core) return false;
  ++core->calls;
  core->last = site;
  ++core->lane->fences;
  return true;
}

// A copy of 1, 2, 4, 8 or 16 bytes between GM and LM.
template <Direction D>
inline __attribute__((always_inline)) bool copy_here(const void* from, void* to, size_t bytes, Site site) {
  constexpr bool to_gm = D == lm2gm;
  const char* const sp = stack_pointer();
  rt::CoreView* const core = enter_here(sp);
  if (!core) return false;
  rt::Lane& lane = *core->lane;
  const rt::Lane::Hint hint = (to_gm ? lane.to : lane.from)[static_cast<unsigned>(site.line) % rt::Lane::kHints];
  const uintptr_t gm = reinterpret_cast<uintptr_t>(to_gm ? to : from);
  const char* const local = static_cast<const char*>(to_gm ? from : to);
  if (__builtin_expect(gm < hint.begin || gm + bytes > hint.end || local < sp || local + bytes > core->lm_top, 0)) {
    return false;
  }
  ++core->calls;
  core->last = site;
  core->dma_bytes += bytes;
  ++lane.small[D][__builtin_ctzll(bytes)];
  if (__builtin_expect((gm & 63) + bytes > 64, 0)) ++lane.second_lines[to_gm];
  if (to_gm && (lane.as_built ? site.fenced : lane.production)) ++lane.fences;
  __builtin_memcpy(to, from, bytes);
  return true;
}

}  // namespace xpu_sim::detail

#endif
