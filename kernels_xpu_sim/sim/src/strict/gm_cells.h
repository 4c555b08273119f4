// The cells of GM. Copies move whole lines of 64 bytes: those have one cell each. A line that is also accessed in parts
// has one per element instead. Memory that is read-only for the launch needs none.
#pragma once

#include <cstdint>
#include <vector>

#include "../gm_table.h"
#include "cell.h"
#include "lazy_array.h"

namespace xpu_sim::rt::strict {

// Spans that overlap share their cells, hence form one region.
struct Region {
  uintptr_t begin, end;
  unsigned element;  // the smallest of its spans
  bool read_only;  // all of its spans are
  bool mixed;  // some of its spans are
  size_t first_cell, first_line;
};

class GmCells {
 public:
  void launch_begins(const GmTable& table);

  // nullptr: no GM.
  const Region* region(uintptr_t address) {
    if (hint_ && address - hint_->begin < hint_->end - hint_->begin) return hint_;
    return search(address);
  }

  // Calls f(cell, first byte, bytes) for the cells of a range within a region that is not read-only.
  template <class F>
  void each(const Region& r, uintptr_t address, size_t bytes, const Access& a, F f) {
    const uintptr_t end = address + bytes;
    while (address < end) {
      const uintptr_t line_end = (address | 63) + 1;
      Cell& line = lines_[r.first_line + (address >> 6) - (r.begin >> 6)];
      if (!in_launch(a, line.wstamp) && !in_launch(a, line.rstamp)) line.flags = 0;
      if (!(line.flags & kCellParts)) {
        if ((address & 63) == 0 && line_end <= end) {
          f(line, address, size_t{64});
          address = line_end;
          continue;
        }
        split(r, line, line_end);
      }
      line.rstamp = a.now;  // so that it stays what it is for this launch
      const uintptr_t stop = line_end < end ? line_end : end;
      size_t i = (address - r.begin) / r.element;
      for (uintptr_t at = r.begin + i * r.element; at < stop; ++i, at += r.element) {
        f(cells_[r.first_cell + i], at, size_t{r.element});
      }
      address = stop;
    }
  }

 private:
  const Region* search(uintptr_t address);
  void split(const Region& r, Cell& line, uintptr_t line_end);
  std::vector<Region> regions_;  // sorted by address
  const Region* hint_ = nullptr;
  LazyArray<Cell> cells_, lines_;
};

}  // namespace xpu_sim::rt::strict
