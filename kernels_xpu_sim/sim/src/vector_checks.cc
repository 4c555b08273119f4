// Checks that inlined builtins call when they see something wrong, or may.
#include "builtin.h"
#include "checker.h"
#include "trap.h"
#include "xpu_sim/kernel/cast.h"
#include "xpu_sim/kernel/simd/memory.h"

namespace xpu_sim::detail {

using namespace xpu_sim::rt;

void simd_unaligned(const void* address, Site site) {
  Core* const core = enter(site, XPU_SIM_CALLER);
  Finding f =
      finding_at(Check::simd_unalign, *core, site,
                 text("a vector load or store needs a multiple of 64 bytes, got an address that is %u beyond one",
                      static_cast<unsigned>(reinterpret_cast<uintptr_t>(address) & 63)));
  describe(&f, *core, address);
  trap_or_go_on(std::move(f));
}

bool masked_stores_write_zero() {
  const Launch* const launch = current()->launch;
  return !launch || launch->options->model.masked_stores_write_zero;
}

void no_such_cast() {}

void cast_needs_room(const void* from, long long from_bytes, void* to, long long to_bytes, Site site) {
  if (!checker || from_bytes <= 0) return;
  Core* const core = enter(site, XPU_SIM_CALLER);
  checker->room(*core, from, static_cast<size_t>(from_bytes), site);
  checker->room(*core, to, static_cast<size_t>(to_bytes), site);
}

}  // namespace xpu_sim::detail
