// The cells of SM: one per word of 4 bytes, and one per byte of those words that are also accessed in parts.
#pragma once

#include "cell.h"
#include "lazy_array.h"

namespace xpu_sim::rt::strict {

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

}  // namespace xpu_sim::rt::strict
