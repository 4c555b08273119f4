// The histories of SM and GM, by piece; SM's objects, and GM's caches.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../gm.h"
#include "../modules.h"
#include "../worker.h"
#include "cell.h"

namespace xpu_sim::rt::strict {

// Zeroed memory of which only what is touched is committed.

template <class T>
class LazyArray {
 public:
  LazyArray() = default;
  ~LazyArray() { release(); }
  LazyArray(const LazyArray&) = delete;
  LazyArray& operator=(const LazyArray&) = delete;

  // At least `count` elements. Contents are lost when it grows.
  void need(size_t count) {
    if (count <= count_) return;
    release();
    void* const p =
        mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<T*>(p);
    count_ = count;
  }

  T* data() { return data_; }
  T& operator[](size_t i) { return data_[i]; }

 private:
  void release() {
    if (data_) munmap(data_, count_ * sizeof(T));
    data_ = nullptr;
    count_ = 0;
  }
  T* data_ = nullptr;
  size_t count_ = 0;
};

// The cells of SM: one per word of 4 bytes, and one per byte of those words that are also accessed in parts.

class SmCells {
 public:
  void launch_begins(const char* begin, size_t bytes) {
    begin_ = begin;
    words_.need(bytes / 4 + 1);
    bytes_.need(bytes + 4);
  }

  // Calls f(cell, first byte, bytes) for the cells of a range.
  template <class F>
  void each(const char* address, size_t bytes, F f) {
    size_t at = static_cast<size_t>(address - begin_);
    const size_t end = at + bytes;
    while (at < end) {
      Cell& word = words_[at / 4];
      const size_t stop = at / 4 * 4 + 4;
      if (at % 4 == 0 && stop <= end && !(word.flags & kCellParts)) {
        f(word, begin_ + at, size_t{4});
        at = stop;
        continue;
      }
      split(&word, at / 4 * 4);
      for (; at < stop && at < end; ++at) f(bytes_[at], begin_ + at, size_t{1});
    }
  }

  // The cells of whole, aligned words, which may have been accessed in parts; nullptr: use each().
  Cell* words(const char* address, size_t bytes) {
    const size_t at = static_cast<size_t>(address - begin_);
    return (at | bytes) % 4 == 0 ? &words_[at / 4] : nullptr;
  }

 private:
  void split(Cell* word, size_t first) {
    if (word->flags & kCellParts) return;
    for (size_t i = 0; i < 4; ++i) bytes_[first + i] = *word;
    word->flags |= kCellParts;
  }

  const char* begin_ = nullptr;
  LazyArray<Cell> words_, bytes_;
};

// The objects in SM: where they are, and whether anything was ever put there.

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

// The cells of GM. Copies move whole lines of 64 bytes: those have one cell each. A line that is also accessed in parts
// has one per element instead. Memory that is read-only for the launch needs none.

// Spans that overlap share their cells, hence form one region.
struct Region {
  uintptr_t begin, end;
  unsigned element, element_log;  // the smallest of its spans: a power of two
  bool read_only;  // all of its spans are
  bool mixed;  // some of its spans are
  size_t first_cell, first_line;
};

class GmCells {
 public:
  void launch_begins(const GmTable& table);

  // nullptr: no GM. `place`: what accesses; the same one mostly accesses the same region.
  const Region* region(uintptr_t address, uintptr_t origin = 0) {
    const Region*& hint = hints_[origin % std::size(hints_)];
    if (hint && address - hint->begin < hint->end - hint->begin) return hint;
    return hint = search(address);
  }

  // The cell of a whole element of a line that is split in this launch; nullptr: use each().
  Cell* element(const Region& r, uintptr_t address, size_t bytes, uint32_t launch_start) {
    const uintptr_t at = address - r.begin;
    if (bytes != r.element || (at & (bytes - 1)) != 0) return nullptr;
    if (split_[r.first_line + (address >> 6) - (r.begin >> 6)] < launch_start) return nullptr;
    return &cells_[r.first_cell + (at >> r.element_log)];
  }

  // Calls f(cell, first byte, bytes) for the cells of a range within a region that is not read-only.
  template <class F>
  void each(const Region& r, uintptr_t address, size_t bytes, const Access& a, F f) {
    const uintptr_t end = address + bytes;
    while (address < end) {
      const uintptr_t line_end = (address | 63) + 1;
      const size_t line = r.first_line + (address >> 6) - (r.begin >> 6);
      if (split_[line] < a.launch_start) {
        if ((address & 63) == 0 && line_end <= end) {
          f(lines_[line], address, size_t{64});
          address = line_end;
          continue;
        }
        split(r, line, line_end, a);
      }
      const uintptr_t stop = line_end < end ? line_end : end;
      size_t i = (address - r.begin) >> r.element_log;
      for (uintptr_t at = r.begin + (i << r.element_log); at < stop; ++i, at += r.element) {
        f(cells_[r.first_cell + i], at, size_t{r.element});
      }
      address = stop;
    }
  }

 private:
  const Region* search(uintptr_t address) const;
  void split(const Region& r, size_t line, uintptr_t line_end, const Access& a);
  std::vector<Region> regions_;  // sorted by address
  const Region* hints_[16] = {};
  LazyArray<Cell> cells_, lines_;
  LazyArray<uint32_t> split_;  // by line: when it was last split, so that looking is cheap
};

// What scalar loads of GM may see where they go through a cache of the core's own (model.scalar_gm_is_coherent=0): the
// line as it was when the core first loaded from it since its last fence of GM, with its own stores.

class GmCaches {
 public:
  // False: some of the bytes are others in GM by now. What is reported once is then forgotten.
  bool load(int core, const Region& region, uintptr_t address, size_t bytes);
  // The core is about to store.
  void store(int core, const Region& region, uintptr_t address, size_t bytes);
  // Called before another core can run, or this one goes on: that store has been done.
  void settle();

  void clear(int core) {
    lines_[core].clear();
    if (stored_.core == core) stored_.bytes = 0;
  }

 private:
  using Line = std::array<char, 64>;

  std::unordered_map<uintptr_t, Line> lines_[kMaxCores];  // by first address, in the region
  struct {
    int core = 0;
    Region region{};
    uintptr_t address = 0;
    size_t bytes = 0;
  } stored_;
};

}  // namespace xpu_sim::rt::strict
