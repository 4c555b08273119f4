#include "cells.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "cell.h"
#include "lm.h"

namespace xpu_sim::rt::strict {

Origin Origins::of(Site site) {
  Origin& recent = recent_[static_cast<size_t>(site.line) % std::size(recent_)];
  const auto same = [&](const Site& s) { return s.line == site.line && s.file == site.file; };
  if (recent && same(sites_[recent & ~kSite])) return recent;
  for (size_t i = 0; i < sites_.size(); ++i) {
    if (same(sites_[i])) return recent = kSite | static_cast<Origin>(i);
  }
  sites_.push_back(site);
  return recent = kSite | static_cast<Origin>(sites_.size() - 1);
}

Location Origins::locate(Origin origin) const {
  if (!(origin & kSite)) return rt::locate(reinterpret_cast<const void*>(base_ + origin - 1));
  const Site site = sites_[origin & ~kSite];
  Location where;
  if (site.file) where.file = site.file;
  where.line = site.line;
  return where;
}

void SmObjects::launch_begins(const KernelInfo* kernel, char* sm) {
  sm_ = sm;
  kernel_ = kernel;
  if (kernel->module != module_) {
    module_ = kernel->module;
    number_.clear();
    known_.clear();
    widths_.assign(module_ ? module_->tls_bytes + kLine : 0, 0);
    used_.assign(module_ ? module_->tls_bytes / kLine / 64 + 1 : 0, ~uint64_t{0});
    if (module_ && module_->has_symbols) {
      number_.assign(module_->tls_bytes + 1, 0);
      uint16_t number = 0;
      for (const Symbol& object : module_->sm_objects) {
        ++number;
        std::fill_n(number_.begin() + static_cast<std::ptrdiff_t>(object.begin), object.bytes, number);
      }
      for (const Symbol& guard : module_->sm_guards) {
        std::fill_n(number_.begin() + static_cast<std::ptrdiff_t>(guard.begin), guard.bytes, kGuard);
      }
    }
  }
  filled_ = filled_of(kernel);
}

std::vector<uint16_t>& SmObjects::filled_of(const KernelInfo* kernel) {
  for (auto& [known, objects] : known_) {
    if (known == kernel) return objects;
  }
  std::vector<uint16_t> own;
  for (const Symbol* object : kernel->sm_objects) {
    own.push_back(static_cast<uint16_t>(object - module_->sm_objects.data() + 1));
  }
  known_.emplace_back(kernel, std::move(own));
  return known_.back().second;
}

void SmObjects::cluster_begins() {
  // The pattern lies by address, so that a part of it is recognised.
  constexpr uint64_t kFilling[] = {kUnused, kUnused, kUnused, kUnused, kUnused, kUnused, kUnused, kUnused};
  static_assert(sizeof kFilling == kLine);
  for (const uint16_t number : filled_) {
    const Symbol& object = module_->sm_objects[number - 1u];
    const size_t end = object.begin + object.bytes;
    for (size_t line = object.begin / kLine; line * kLine < end;) {
      const uint64_t rest = used_[line / 64] >> line % 64;
      if (rest == 0) {
        line = (line / 64 + 1) * 64;
        continue;
      }
      line += static_cast<size_t>(__builtin_ctzll(rest));
      if (line * kLine >= end) break;
      std::memcpy(sm_ + line * kLine, kFilling, std::min(kLine, end - line * kLine));
      std::memset(&widths_[line * kLine], 0, kLine);
      used_[line / 64] &= ~(uint64_t{1} << line % 64);
      ++line;
    }
  }
}

bool SmObjects::unwritten(size_t offset, size_t bytes) {
  if (number_.empty()) return false;
  const uint16_t number = number_[offset];
  if (number == 0) return false;
  if (std::find(filled_.begin(), filled_.end(), number) == filled_.end()) {
    std::vector<uint16_t>& known = filled_of(kernel_);
    if (std::find(known.begin(), known.end(), number) == known.end()) known.push_back(number);
    return false;
  }
  for (size_t i = 0; i < bytes; ++i) {
    const char* const at = sm_ + offset + i;
    if (*at != reinterpret_cast<const char*>(&kUnused)[reinterpret_cast<uintptr_t>(at) & 7]) return false;
  }
  return true;
}

void GmCells::launch_begins(const GmTable& table) {
  regions_.clear();
  std::fill(std::begin(hints_), std::end(hints_), nullptr);
  for (const Span& s : table.spans()) {
    if (s.begin == s.end) continue;
    if (regions_.empty() || s.begin >= regions_.back().end) {
      regions_.push_back({s.begin, s.end, s.element, 0, s.read_only, false, 0, 0});
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
    r.element_log = static_cast<unsigned>(__builtin_ctz(r.element));
    r.first_cell = cells;
    r.first_line = lines;
    if (r.read_only) continue;
    cells += (r.end - r.begin) / r.element + 1;
    lines += ((r.end - 1) >> 6) - (r.begin >> 6) + 1;
  }
  cells_.need(cells);
  lines_.need(lines);
  split_.need(lines);
}

void GmCells::split(const Region& r, size_t line, uintptr_t line_end, const Access& a) {
  split_[line] = a.now;
  const Cell& cell = lines_[line];
  if (!in_launch(a, cell.wstamp) && !in_launch(a, cell.rstamp)) return;  // nor was any element
  const uintptr_t first = std::max(line_end - 64, r.begin), last = std::min(line_end, r.end);
  for (uintptr_t at = first; at < last; at += r.element)
    cells_[r.first_cell + ((at - r.begin) >> r.element_log)] = cell;
}

const Region* GmCells::search(uintptr_t address) const {
  const auto after = std::upper_bound(regions_.begin(), regions_.end(), address,
                                      [](uintptr_t a, const Region& r) { return a < r.begin; });
  if (after == regions_.begin()) return nullptr;
  const Region& r = *(after - 1);
  return address < r.end ? &r : nullptr;
}

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
