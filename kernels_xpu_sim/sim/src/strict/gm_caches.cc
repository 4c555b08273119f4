#include "gm_caches.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace xpu_sim::rt::strict {

namespace {

// Calls f(first, last, begin, end) for each line: what of it is in the region, and what of that is in the range.
template <class F>
void each_line(const Region& region, uintptr_t address, size_t bytes, F f) {
  const uintptr_t range_end = std::min(address + bytes, region.end);
  for (uintptr_t at = address; at < range_end;) {
    const uintptr_t line = at & ~uintptr_t{63};
    const uintptr_t end = std::min(line + 64, range_end);
    f(std::max(line, region.begin), std::min(line + 64, region.end), at, end);
    at = end;
  }
}

const char* memory(uintptr_t address) { return reinterpret_cast<const char*>(address); }

}  // namespace

bool GmCaches::load(int core, const Region& region, uintptr_t address, size_t bytes) {
  settle();
  bool same = true;
  each_line(region, address, bytes, [&](uintptr_t first, uintptr_t last, uintptr_t begin, uintptr_t end) {
    const auto [line, is_new] = lines_[core].try_emplace(first);
    char* const held = line->second.data();
    const bool differs = !is_new && std::memcmp(held + (begin - first), memory(begin), end - begin) != 0;
    if (is_new || differs) std::memcpy(held, memory(first), last - first);
    same = same && !differs;
  });
  return same;
}

void GmCaches::store(int core, const Region& region, uintptr_t address, size_t bytes) {
  settle();
  stored_ = {core, region, address, bytes};
}

void GmCaches::settle() {
  const size_t bytes = std::exchange(stored_.bytes, 0);
  each_line(stored_.region, stored_.address, bytes, [&](uintptr_t first, uintptr_t, uintptr_t begin, uintptr_t end) {
    const auto line = lines_[stored_.core].find(first);
    if (line != lines_[stored_.core].end()) {
      std::memcpy(line->second.data() + (begin - first), memory(begin), end - begin);
    }
  });
}

}  // namespace xpu_sim::rt::strict
