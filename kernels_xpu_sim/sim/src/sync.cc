// Coordinates, fences and barriers.
#include "xpu_sim/kernel/sync.h"
#include "builtin.h"
#include "checker.h"
#include "trap.h"
#include "xpu_sim/kernel/coordinates.h"

namespace xpu_sim::rt {

void outside_of_kernel(Site site) {
  throw std::logic_error(text("%s:%d: a kernel builtin was called outside of a kernel; launch the kernel",
                              site.file ? site.file : "?", site.line));
}

void called_often(Core* core, Site site) {
  if (core->worker->watch.limit_reached()) watchdog_trap(*core, site);
  core->worker->give_way();
}

namespace {

constexpr uint32_t kAllGroups = (1u << kGroups) - 1;

void wait(uint32_t groups, Site site, Caller caller) {
  Core* const core = current();
  if (core->worker && (core->launch->options->model.barrier_is_fence || fenced(*core, site))) {
    fence(fence_lm | fence_sm | fence_gm, site, caller);
  }
  enter(site, caller)->calls = 0;
  core->worker->barrier(groups, site);
}

}  // namespace

}  // namespace xpu_sim::rt

using xpu_sim::Site;
using xpu_sim::rt::current;
using xpu_sim::rt::fence;
using xpu_sim::rt::fence_gm;
using xpu_sim::rt::fence_lm;
using xpu_sim::rt::fence_sm;

int core_id() { return current()->id; }
int cluster_id() { return current()->cluster; }
int core_num() { return current()->launch ? current()->launch->cores : 0; }
int cluster_num() { return current()->launch ? current()->launch->clusters : 0; }

void mfence(Site s) { fence(fence_lm | fence_sm | fence_gm, s, XPU_SIM_CALLER); }
void mfence_lm(Site s) { fence(fence_lm, s, XPU_SIM_CALLER); }
void mfence_sm(Site s) { fence(fence_sm, s, XPU_SIM_CALLER); }
void mfence_gm(Site s) { fence(fence_gm, s, XPU_SIM_CALLER); }
void mfence_lm_sm(Site s) { fence(fence_lm | fence_sm, s, XPU_SIM_CALLER); }
void mfence_lm_gm(Site s) { fence(fence_lm | fence_gm, s, XPU_SIM_CALLER); }
void mfence_sm_gm(Site s) { fence(fence_sm | fence_gm, s, XPU_SIM_CALLER); }
void mfence(int mask, Site s) { fence(static_cast<uint32_t>(mask) & 7u, s, XPU_SIM_CALLER); }

void sync_cluster(Site s) { xpu_sim::rt::wait(xpu_sim::rt::kAllGroups, s, XPU_SIM_CALLER); }
void sync_all(Site s) { xpu_sim::rt::wait(xpu_sim::rt::kAllGroups, s, XPU_SIM_CALLER); }
void sync_local(Site s) {
  const auto* const core = current();
  const int group = core->worker ? core->worker->group_of(core->id) : 0;
  xpu_sim::rt::wait(1u << group, s, XPU_SIM_CALLER);
}
void sync_group(int mask, Site s) {
  xpu_sim::rt::wait(static_cast<uint32_t>(mask) & xpu_sim::rt::kAllGroups, s, XPU_SIM_CALLER);
}
