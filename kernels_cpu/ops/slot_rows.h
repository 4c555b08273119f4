// Rows of slots, from offsets that may be wild.
#pragma once

#include <cstdint>
#include <vector>

#include "specdec/recurrent.h"

namespace specdec::cpu {

// m_0 .. m_B.
inline std::vector<int64_t> row_offsets(const int32_t* offsets_of_slots, int64_t slots, int64_t capacity) {
  std::vector<int64_t> offsets(static_cast<size_t>(slots + 1));
  int64_t most = 0;
  for (int64_t b = 0; b <= slots; ++b) {
    most = max64(most, row_offset(offsets_of_slots[b], capacity));
    offsets[static_cast<size_t>(b)] = most;
  }
  return offsets;
}

}  // namespace specdec::cpu
