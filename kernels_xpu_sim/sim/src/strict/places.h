// Where an access came from, in 32 bits, so that shadow memory can afford it.
#pragma once

#include <cstdint>
#include <vector>

#include "../modules.h"
#include "xpu_sim/site.h"

namespace xpu_sim::rt::strict {

// A return address in the kernel's module, or the source line of a builtin.
using Place = uint32_t;

class Places {
 public:
  void launch_begins(const Module* module) { base_ = module ? module->base : 0; }

  Place of(const void* pc) const { return static_cast<Place>(reinterpret_cast<uintptr_t>(pc) - base_) & ~kSite; }
  Place of(Site site);
  Location locate(Place place) const;

 private:
  static constexpr Place kSite = 0x80000000u;
  uintptr_t base_ = 0;
  std::vector<Site> sites_;
  Place recent_[64] = {};  // by a few bits of the line: most copies repeat
};

}  // namespace xpu_sim::rt::strict
