// The DMA engine: copies that have been issued and not yet done.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "xpu_sim/options.h"
#include "xpu_sim/report.h"
#include "xpu_sim/site.h"

namespace xpu_sim::rt {

enum Fence : uint32_t { fence_lm = 1, fence_sm = 2, fence_gm = 4 };

struct Copy {
  Direction direction;
  char* to;
  const char* from;
  size_t bytes;
  size_t kept;       // where the source's bytes at issue lie in DmaQueue::sources; only for copies to GM
  Site site;
};

struct DmaQueue {
  std::vector<Copy> pending;          // in the order of issue
  std::vector<char> sources;

  void clear() {
    pending.clear();
    sources.clear();
  }
};

inline bool to_gm(Direction d) { return d == lm2gm || d == sm2gm || d == gsm2gm; }
// The fence that must precede use of the local side.
inline uint32_t local_fence(Direction d) { return d == gm2sm || d == sm2gm ? fence_sm : fence_lm; }

// Moves the copies that `chosen` picks to the front and returns where the others begin; all in the order of issue.
// Where copies take effect in that order, those issued before a chosen one are done with it.
template <class I, class F>
I pick(I begin, I end, bool fifo, F chosen) {
  if (!fifo) return std::stable_partition(begin, end, chosen);
  while (end != begin && !chosen(*(end - 1))) --end;
  return end;
}

// Does a synchronous copy of `direction` wait for the earlier `c`?
inline bool drains(Direction direction, const Copy& c, const Model& model) {
  return model.sync_drains_all_kinds || model.dma_fifo || c.direction == direction;
}

// Does a fence with this mask complete the copy?
inline bool completes(const Copy& c, uint32_t mask, const Model& model) {
  if (!to_gm(c.direction)) return (mask & local_fence(c.direction)) != 0;
  return (mask & fence_gm) || (model.lm_fence_frees_source && (mask & local_fence(c.direction)));
}

struct Core;

// The core has returned: what it has issued takes effect.
void finish_copies(Core* core);

}  // namespace xpu_sim::rt
