// The objects in SM: where they are, and whether anything was ever put there.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "../kernel_info.h"

namespace xpu_sim::rt::strict {

class SmObjects {
 public:
  void launch_begins(const KernelInfo* kernel, char* sm);
  // Fills the kernel's objects with what unused memory holds (memory_image.h), where that is not there still.
  void cluster_begins();
  // Something is stored there, or copied.
  void written(size_t offset, size_t bytes) {
    for (size_t line = offset / kLine; line <= (offset + bytes - 1) / kLine; ++line) set(line);
  }
  void all_written() { std::fill(used_.begin(), used_.end(), ~uint64_t{0}); }

  // Does the range lie within one object?
  bool hold(size_t offset, size_t bytes) const {
    return number_.empty() || (number_[offset] && number_[offset + bytes - 1] == number_[offset]);
  }

  // By byte, as in LM's shadow: whether it was written in this cluster, and by how wide a store.
  uint8_t* widths(size_t offset) { return &widths_[offset]; }

  // The compiler's own, no memory of the kernel's.
  bool is_guard(size_t offset) const { return !number_.empty() && number_[offset] == kGuard; }

  // Called for bytes that no store that was seen has written: is that so? Not every store is seen, such as a
  // library function's. Objects of functions that the kernel calls are learnt here, for the next cluster.
  bool unwritten(size_t offset, size_t bytes);

 private:
  static constexpr uint16_t kGuard = 0xFFFF;
  static constexpr size_t kLine = 64;  // objects begin at multiples of it
  void set(size_t line) { used_[line / 64] |= uint64_t{1} << line % 64; }
  std::vector<uint16_t>& filled_of(const KernelInfo* kernel);
  const Module* module_ = nullptr;
  const KernelInfo* kernel_ = nullptr;
  char* sm_ = nullptr;
  std::vector<uint16_t> number_;  // by byte of SM: its object, from 1; 0: none. Empty: a stripped module, unknown
  std::vector<uint8_t> widths_;
  std::vector<uint64_t> used_;  // bit per line: it may hold something else than the filling
  std::vector<uint16_t> filled_;  // objects of the running kernel that are filled
  std::vector<std::pair<const KernelInfo*, std::vector<uint16_t>>> known_;  // the same of every kernel
};

}  // namespace xpu_sim::rt::strict
