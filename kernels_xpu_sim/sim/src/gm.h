// Which addresses are GM.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
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

Span span_of(const GmSpan& given);

// Spans sorted by address; they may overlap.
class GmTable {
 public:
  void clear() {
    spans_.clear();
    names_.clear();
  }
  // Keeps the order; `reach` is filled in. `name` lives as long as the table: another thread may free the memory.
  void add(const Span& span, std::shared_ptr<const std::string> name = nullptr);

  // The span that holds all of [address, address + bytes); nullptr: none. Of several, one that may be written, since a
  // caller may pass one tensor as two arguments.
  const Span* find(uintptr_t address, size_t bytes) const;
  // The span nearest to the address, which the kernel probably meant, or nullptr.
  const Span* nearest(uintptr_t address) const;
  const std::vector<Span>& spans() const { return spans_; }

 private:
  std::vector<Span> spans_;
  std::vector<std::shared_ptr<const std::string>> names_;
};

// GM that outlives launches: allocated or registered. A launch takes a copy when something has changed.
uint64_t registry_generation();
uint64_t copy_registry(GmTable* table);   // returns the generation that was copied
// The name of the allocation that held the address and was freed, and the address's offset in it; empty: none did. The
// latest ones are known, and their addresses are not used again.
std::string freed_gm(const void* p, long long* offset);
// A write to the red zone of an allocation.
struct Damage {
  std::string name;      // the allocation's,
  size_t bytes;          // and size
  long long offset;      // from its start
};
// Those since the last call.
std::vector<Damage> check_red_zones();

}  // namespace xpu_sim::rt
