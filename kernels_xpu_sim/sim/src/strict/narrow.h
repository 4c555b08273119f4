// Elements that are written in part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "cells.h"
#include "xpu_sim/finding.h"

namespace xpu_sim::rt::strict {

class NarrowStores {
 public:
  void clear();

  // A write of [address, address + bytes); make() gives the finding that it is if nothing fills the rest.
  template <class F>
  void note(const Region& region, uintptr_t address, size_t bytes, At at, F make) {
    const uintptr_t begin = address - region.begin, last = region.element - 1;
    if (__builtin_expect(((begin | bytes) & last) == 0 || region.element > 8, 1)) return;
    const size_t number = number_of(at);
    if (number == stores_.size()) stores_.push_back({at, make()});
    const uintptr_t end = begin + bytes;
    add(region, begin & ~last, begin, end, number);
    if ((begin & ~last) != ((end - 1) & ~last)) add(region, (end - 1) & ~last, begin, end, number);
  }

  // Those that are not whole, one for each place.
  std::vector<Finding> take();

 private:
  struct Store {
    At at;
    Finding finding;
  };
  struct Element {
    unsigned bytes, written;  // a bit for each byte
    size_t origin;
  };
  size_t number_of(At at) const;
  void add(const Region& region, uintptr_t element, uintptr_t begin, uintptr_t end, size_t origin);

  std::vector<Store> stores_;
  std::unordered_map<uintptr_t, Element> elements_;
};

}  // namespace xpu_sim::rt::strict
