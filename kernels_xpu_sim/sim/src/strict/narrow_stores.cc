#include "narrow_stores.h"

#include <algorithm>

namespace xpu_sim::rt::strict {

void NarrowStores::clear() {
  places_.clear();
  elements_.clear();
}

size_t NarrowStores::number_of(const void* place, int line) const {
  const auto same = [&](const Place& p) { return p.place == place && p.line == line; };
  return static_cast<size_t>(std::find_if(places_.begin(), places_.end(), same) - places_.begin());
}

void NarrowStores::add(const Region& region, uintptr_t element, uintptr_t begin, uintptr_t end, size_t place) {
  Element& e = elements_.try_emplace(region.begin + element, Element{region.element, 0, place}).first->second;
  for (unsigned i = 0; i < region.element; ++i) {
    if (element + i >= begin && element + i < end) e.written |= 1u << i;
  }
}

std::vector<Finding> NarrowStores::take() {
  std::vector<bool> narrow(places_.size());
  for (const auto& [address, e] : elements_) {
    if (e.written != (1u << e.bytes) - 1) narrow[e.place] = true;
  }
  std::vector<Finding> all;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (narrow[i]) all.push_back(std::move(places_[i].finding));
  }
  clear();
  return all;
}

}  // namespace xpu_sim::rt::strict
