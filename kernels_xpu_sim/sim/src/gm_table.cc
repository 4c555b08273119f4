#include "gm_table.h"

#include <algorithm>
#include <utility>

namespace xpu_sim::rt {

void GmTable::add(const Span& span, std::shared_ptr<const std::string> name) {
  if (name) names_.push_back(std::move(name));
  const auto at = std::upper_bound(spans_.begin(), spans_.end(), span.begin,
                                   [](uintptr_t begin, const Span& s) { return begin < s.begin; });
  size_t i = static_cast<size_t>(at - spans_.begin());
  spans_.insert(at, span);
  for (; i < spans_.size(); ++i) {
    spans_[i].reach = i ? std::max(spans_[i - 1].reach, spans_[i].end) : spans_[i].end;
  }
}

const Span* GmTable::search(uintptr_t address, size_t bytes) const {
  // Branch-free over the few spans of a launch.
  size_t low = 0;
  for (size_t n = spans_.size(); n > 0;) {
    const size_t half = (n + 1) / 2;
    low += spans_[low + half - 1].begin <= address ? half : 0;
    n -= half;
  }
  const Span* found = nullptr;
  for (size_t i = low; i-- > 0;) {
    const Span& s = spans_[i];
    if (s.reach < address + bytes) break;
    if (s.end < address + bytes) continue;
    found = &s;
    if (!s.read_only) break;
  }
  return found;
}

const Span* GmTable::nearest(uintptr_t address) const {
  const Span* best = nullptr;
  uintptr_t distance = 0;
  for (const Span& s : spans_) {
    const uintptr_t d = address < s.begin ? s.begin - address : address >= s.end ? address - s.end : 0;
    if (!best || d < distance) {
      best = &s;
      distance = d;
    }
  }
  return best;
}

}  // namespace xpu_sim::rt
