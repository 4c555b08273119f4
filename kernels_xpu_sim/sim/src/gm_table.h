// Which addresses are GM.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "xpu_sim/options.h"

namespace xpu_sim::rt {

struct Span {
  uintptr_t begin = 0, end = 0;
  uintptr_t reach = 0;          // the largest end up to and including this span: where a search backwards may stop
  const char* name = "";
  unsigned element = 1;
  bool read_only = false;

  size_t bytes() const { return end - begin; }
};

// Spans sorted by address; they may overlap.
class GmTable {
 public:
  void clear() { spans_.clear(); }
  void add(const Span& span);   // keeps the order; `reach` is filled in

  // The span that holds all of [address, address + bytes); nullptr: none. Of several, one that may be written, since a
  // caller may pass one tensor as two arguments. `hint` is the caller's last result, or nullptr.
  const Span* find(uintptr_t address, size_t bytes, const Span* hint) const {
    if (hint && !hint->read_only && address >= hint->begin && address + bytes <= hint->end) return hint;
    return search(address, bytes);
  }
  // The span nearest to the address: what the kernel probably meant; nullptr: there is none.
  const Span* nearest(uintptr_t address) const;
  const std::vector<Span>& spans() const { return spans_; }

 private:
  const Span* search(uintptr_t address, size_t bytes) const;
  std::vector<Span> spans_;
};

// GM that outlives launches: allocated or registered. A launch takes a copy when something has changed.
uint64_t registry_generation();
uint64_t copy_registry(GmTable* table);   // returns the generation that was copied
// Looks at the red zones of every allocation; calls back for each that was written to.
void check_red_zones(void (*damaged)(void* context, const char* name, size_t bytes, long long offset), void* context);

}  // namespace xpu_sim::rt
