// What every builtin does first.
#pragma once

#include <stdexcept>

#include "worker.h"

// What a builtin knows of the kernel that calls it.
#define XPU_SIM_CALLER \
  xpu_sim::rt::Caller { static_cast<char*>(__builtin_frame_address(0)), __builtin_return_address(0) }

namespace xpu_sim::rt {

struct Caller {
  char* frame;      // the stack pointer, near enough: everything of the kernel's lies above
  const void* pc;
};

// A core that calls the runtime this often without waiting may be waiting in a loop of its own, for another core.
constexpr uint32_t kCallsBeforeGivingWay = 1u << 16;

[[noreturn]] void outside_of_kernel(Site site);
[[gnu::cold]] void called_often(Core* core, Site site);
void fence(uint32_t mask, Site site, Caller caller);

// Has the compiler put a fence before this copy or barrier?
inline bool fenced(const Core& core, Site site) {
  const Profile profile = core.launch->options->profile;
  return __builtin_expect(profile == Profile::as_built ? site.fenced : profile == Profile::production, 0);
}

inline Core* enter(Site site, Caller caller) {
  Core* const core = current();
  if (__builtin_expect(!core->worker, 0)) outside_of_kernel(site);
  core->last = site;
  core->last_pc = caller.pc;
  if (caller.frame < core->lm_low) {
    core->lm_low = caller.frame;
    core->lm_site = site;
    core->lm_pc = nullptr;
  }
  if (__builtin_expect(++core->calls > kCallsBeforeGivingWay, 0)) called_often(core, site);
  return core;
}

}  // namespace xpu_sim::rt
