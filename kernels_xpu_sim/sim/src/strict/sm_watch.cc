#include "sm_watch.h"

#include <algorithm>

namespace xpu_sim::rt::strict {

void SmWatch::cluster_begins(const SmObjects& objects, const char* sm) {
  ranges_.clear();
  size_t all = 0;
  objects.each_filled([&](size_t begin, size_t bytes) {
    if (bytes > kLargest || all + bytes > kMost) return;
    ranges_.push_back({sm + begin, bytes, all});
    all += bytes;
  });
  copy_.resize(all);
  for (const Range& r : ranges_) std::memcpy(copy_.data() + r.copy, r.begin, r.bytes);
}

void SmWatch::changed(const char* address, size_t bytes) {
  for (const Range& r : ranges_) {
    const char* const low = std::max(address, r.begin);
    const char* const high = std::min(address + bytes, r.begin + r.bytes);
    if (low < high) std::memcpy(copy_.data() + r.copy + (low - r.begin), low, static_cast<size_t>(high - low));
  }
}

}  // namespace xpu_sim::rt::strict
