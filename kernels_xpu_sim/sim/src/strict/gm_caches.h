// What scalar loads of GM may see where they go through a cache of the core's own (model.scalar_gm_is_coherent=0): the
// line as it was when the core first loaded from it since its last fence of GM, with its own stores.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "../worker.h"
#include "gm_cells.h"

namespace xpu_sim::rt::strict {

class GmCaches {
 public:
  // False: some of the bytes are others in GM by now. What is told once is then forgotten.
  bool load(int core, const Region& region, uintptr_t address, size_t bytes);
  // The core is about to store.
  void store(int core, const Region& region, uintptr_t address, size_t bytes);
  // Called before another core can run, or this one goes on: that store has been done.
  void settle();

  void clear(int core) {
    lines_[core].clear();
    if (stored_.core == core) stored_.bytes = 0;
  }

 private:
  using Line = std::array<char, 64>;

  std::unordered_map<uintptr_t, Line> lines_[kMaxCores];  // by first address, in the region
  struct {
    int core = 0;
    Region region{};
    uintptr_t address = 0;
    size_t bytes = 0;
  } stored_;
};

}  // namespace xpu_sim::rt::strict
