// Rows of slots, from offsets that may be wild.
#pragma once

#include "specdec/recurrent.h"
#include "tiles.h"

namespace specdec {

// The rows of slot after slot, ascending.
class SlotOffsets {
 public:
  __device__ SlotOffsets(const int32_t* offsets, int64_t slots, int64_t capacity)
      : offsets_(offsets, slots + 1), capacity_(capacity), next_(0), most_(0) {}

  // m_b, for b that do not descend.
  __device__ int64_t up_to(int64_t b) {
    for (; next_ <= b; ++next_) most_ = max64(most_, row_offset(offsets_[next_], capacity_));
    return most_;
  }

 private:
  GmReader<int32_t, 16> offsets_;
  int64_t capacity_, next_, most_;
};

}  // namespace specdec
