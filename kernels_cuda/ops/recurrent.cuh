// Shared by ops with states by position: a slot's rows, places in a ring, floats of any type.
#pragma once

#include "specdec/recurrent.h"
#include "specdec/row_floats.h"
#include "warp.cuh"

namespace specdec::cuda {

// Rows [first, first + count) of the packed batch, the first one at position `start`.
struct PackedRows {
  int64_t first, count;
  uint32_t start;
};

// m_b. All lanes of the warp.
__device__ __forceinline__ int64_t rows_before(const int32_t* offsets, int64_t b, int64_t capacity) {
  int most = 0;
  for (int64_t i = lane_id(); i <= b; i += kWarp) {
    const int offset = static_cast<int>(row_offset(offsets[i], capacity));
    if (offset > most) most = offset;
  }
  return __reduce_max_sync(kAllLanes, most);
}

// All lanes of the warp.
template <typename Args>
__device__ __forceinline__ PackedRows rows_of_slot(const Args& a, int64_t b, int64_t capacity) {
  const int64_t stop = row_offset(a.cu_seqlens_q[b + 1], capacity);
  const auto start = static_cast<uint32_t>(first_position(a.seq_lens_decoder[b]));
  const int64_t first = rows_before(a.cu_seqlens_q, b, capacity);
  return {first, max64(stop - first, 0), start};
}

constexpr unsigned kStateLanes = 4;  // that have the same rows of a state, those of one partial sum
static_assert(kStateLanes * kDotParts == kWarp, "a group of lanes for each partial sum");

// Sum over the lanes that have the other rows of the same columns, in the contract's order.
__device__ __forceinline__ float sum_of_groups(float part) {
#pragma unroll
  for (int d = static_cast<int>(kWarp) / 2; d >= static_cast<int>(kStateLanes); d /= 2) {
    part = add_rn(part, __shfl_xor_sync(kAllLanes, part, d));
  }
  return part;
}

// Slots with at least so many rows, those of prompts, have kernels of their own.
constexpr int64_t kPromptRows = 32;

// Whether a step may have such slots, if they are long enough to pay for a launch. Other steps have up to `drafted`
// rows of each slot.
inline bool may_have_prompts(int64_t slots, int64_t capacity, int64_t drafted) {
  return capacity >= kPromptRows && capacity > min64(slots * drafted, 16 * kPromptRows);
}

// Some rows of a slot b; b is negative if there are none.
struct PromptItem {
  int64_t b, part;
  PackedRows rows;
};

// Slots with at least kPromptRows rows have one item for each `each` rows. Finds item `item` of all. All lanes of the
// warp.
template <typename Args>
__device__ __forceinline__ PromptItem prompt_item(const Args& a, int64_t capacity, unsigned item, int64_t each) {
  int before = 0;  // m_b, of the slots so far
  for (int64_t base = 0; base < a.B; base += kWarp) {
    const int64_t b = base + lane_id();
    int first = b < a.B ? static_cast<int>(row_offset(a.cu_seqlens_q[b], capacity)) : 0;
    const int stop = b < a.B ? static_cast<int>(row_offset(a.cu_seqlens_q[b + 1], capacity)) : 0;
#pragma unroll
    for (unsigned d = 1; d < kWarp; d *= 2) {
      const int below = __shfl_up_sync(kAllLanes, first, d);
      if (lane_id() >= d && below > first) first = below;
    }
    if (before > first) first = before;
    const int count = stop - first;
    const auto own = static_cast<unsigned>(count >= kPromptRows ? (count + each - 1) / each : 0);
    const unsigned upto = warp_inclusive(own);
    const uint32_t found = __ballot_sync(kAllLanes, item < upto);
    if (found != 0) {
      const int lane = __ffs(static_cast<int>(found)) - 1;
      const PackedRows rows = {__shfl_sync(kAllLanes, first, lane), __shfl_sync(kAllLanes, count, lane),
                               static_cast<uint32_t>(first_position(a.seq_lens_decoder[base + lane]))};
      return {base + lane, item - __shfl_sync(kAllLanes, upto - own, lane), rows};
    }
    item -= __shfl_sync(kAllLanes, upto, kWarp - 1);
    before = __shfl_sync(kAllLanes, first, kWarp - 1);
  }
  return {-1, 0, {}};
}

// Rows of no slot: those before `ahead`, and from `end` on.
struct FreeRows {
  int64_t ahead, end;

  // All lanes of the warp.
  template <typename Args>
  __device__ __forceinline__ explicit FreeRows(const Args& a)
      : ahead(rows_before(a.cu_seqlens_q, 0, a.T_cap)), end(rows_before(a.cu_seqlens_q, a.B, a.T_cap)) {}

  template <typename Bits>
  __device__ __forceinline__ void clear(Bits* out, int64_t rows, int64_t row_width, int64_t column) const {
    for (int64_t row = 0; row < ahead; ++row) out[row * row_width + column] = 0;
    for (int64_t row = end; row < rows; ++row) out[row * row_width + column] = 0;
  }
};

// Entries of consecutive positions.
struct RingEntry {
  uint32_t at, ring;

  __device__ __forceinline__ RingEntry(uint32_t position, int64_t entries)
      : at(position % static_cast<uint32_t>(entries)), ring(static_cast<uint32_t>(entries)) {}
  __device__ __forceinline__ void advance() { at = at + 1 == ring ? 0 : at + 1; }
  // The entry of an earlier position; distance <= ring.
  __device__ __forceinline__ uint32_t before(uint32_t distance) const {
    return at >= distance ? at - distance : at + ring - distance;
  }
};

__device__ __forceinline__ uint32_t load_bits(const void* from, int64_t i, FloatType type) {
  return type == FloatType::kFloat32 ? static_cast<const uint32_t*>(from)[i] : static_cast<const uint16_t*>(from)[i];
}

__device__ __forceinline__ float float_of_bits(uint32_t bits, FloatType type) {
  if (type == FloatType::kFloat32) return f32_from_bits(bits);
  return type == FloatType::kBfloat16 ? bf16_to_f32(static_cast<uint16_t>(bits))
                                      : f16_to_f32(static_cast<uint16_t>(bits));
}

__device__ __forceinline__ float load_float(const void* from, int64_t i, FloatType type) {
  return float_of_bits(load_bits(from, i, type), type);
}

__device__ __forceinline__ void store_float(void* to, int64_t i, FloatType type, float x) {
  if (type == FloatType::kFloat32) {
    static_cast<float*>(to)[i] = x;
  } else {
    static_cast<uint16_t*>(to)[i] = type == FloatType::kBfloat16 ? f32_to_bf16(x) : f32_to_f16(x);
  }
}

}  // namespace specdec::cuda
