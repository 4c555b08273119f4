#include "gm_cells.h"

#include <algorithm>

namespace xpu_sim::rt::strict {

void GmCells::launch_begins(const GmTable& table) {
  regions_.clear();
  hint_ = nullptr;
  for (const Span& s : table.spans()) {
    if (s.begin == s.end) continue;
    if (regions_.empty() || s.begin >= regions_.back().end) {
      regions_.push_back({s.begin, s.end, s.element, s.read_only, false, 0, 0});
      continue;
    }
    Region& r = regions_.back();
    r.end = std::max(r.end, s.end);
    r.element = std::min(r.element, s.element);
    r.mixed = r.mixed || r.read_only != s.read_only;
    r.read_only = r.read_only && s.read_only;
  }
  size_t cells = 0, lines = 0;
  for (Region& r : regions_) {
    // An element must not lie in two lines.
    if (r.begin % r.element != 0 || 64 % r.element != 0) r.element = 1;
    r.first_cell = cells;
    r.first_line = lines;
    if (r.read_only) continue;
    cells += (r.end - r.begin) / r.element + 1;
    lines += ((r.end - 1) >> 6) - (r.begin >> 6) + 1;
  }
  cells_.need(cells);
  lines_.need(lines);
}

void GmCells::split(const Region& r, Cell& line, uintptr_t line_end) {
  const uintptr_t first = std::max(line_end - 64, r.begin), last = std::min(line_end, r.end);
  for (uintptr_t at = first; at < last; at += r.element) cells_[r.first_cell + (at - r.begin) / r.element] = line;
  line.flags |= kCellParts;
}

const Region* GmCells::search(uintptr_t address) {
  const auto after = std::upper_bound(regions_.begin(), regions_.end(), address,
                                      [](uintptr_t a, const Region& r) { return a < r.begin; });
  if (after == regions_.begin()) return nullptr;
  const Region& r = *(after - 1);
  if (address >= r.end) return nullptr;
  return hint_ = &r;
}

}  // namespace xpu_sim::rt::strict
