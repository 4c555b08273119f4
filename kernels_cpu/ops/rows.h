// Rows that an op moves by a table of sources, and rows of logits that one thread looks at.
#pragma once

#include <cstring>
#include <vector>

#include "../op.h"
#include "specdec/rows/row_team.h"

namespace specdec::cpu {

using Sources = std::vector<int64_t>;

constexpr int64_t kBytesPerNs = 8;  // of what is copied

// Row i of `out` from row sources[i] of x; -1: zeros.
inline void move_rows(Context threads, const char* x, char* out, int64_t row_bytes, const Sources& sources) {
  each(threads, static_cast<int64_t>(sources.size()), row_bytes / kBytesPerNs, [&](int64_t i) {
    const int64_t source = sources[static_cast<size_t>(i)];
    if (source < 0) {
      std::memset(out + i * row_bytes, 0, static_cast<size_t>(row_bytes));
    } else {
      std::memcpy(out + i * row_bytes, x + source * row_bytes, static_cast<size_t>(row_bytes));
    }
  });
}

// A team of one (specdec/rows/row_team.h), with all chunks of a row.
struct Solo {
  int rank() const { return 0; }
  int size() const { return 1; }
  void sync() const {}
};

// With as many lanes as the emulator's clusters have for a guess at a row's first elements.
using SoloShared = RowShared<1, 16>;

template <class L>
class WholeRow {
 public:
  using Bits = typename L::Bits;
  static constexpr bool kInMemory = true;

  WholeRow(const Bits* row, int64_t size) : row_(row), size_(size) {}

  int64_t size() const { return size_; }
  int begin() const { return 0; }
  int end() const { return static_cast<int>(chunk_count(size_)); }
  const Bits* load(int c, int* count) const {
    const int64_t at = int64_t{c} << kChunkBits;
    *count = static_cast<int>(min64(kChunkIds, size_ - at));
    return row_ + at;
  }

 private:
  const Bits* row_;
  int64_t size_;
};

constexpr Limit kRowLimits[] = {{"V", served::kV}};

}  // namespace specdec::cpu
