// eagle_get_hidden_states, eagle_gather_hidden_states and eagle_get_self_hidden_states: a block moves a part of a row.
// In the last two, block b moves an active slot's last row to its position, or zeros to a row of the tail for an
// inactive slot, so every row is written once.
#include <stdexcept>
#include <string>

#include "launch.cuh"
#include "ops.h"
#include "slot_scan.cuh"
#include "specdec/draft_model.h"
#include "specdec_ops/eagle_gather_hidden_states.h"
#include "specdec_ops/eagle_get_hidden_states.h"
#include "specdec_ops/eagle_get_self_hidden_states.h"

namespace specdec::cuda {

constexpr unsigned kEagleThreads = 256;
constexpr unsigned kEagleUnits = 4;  // of a thread, on their way at a time
constexpr unsigned kEagleChunk = kEagleThreads * kEagleUnits;

// From row `source` of x (-1: zeros) to row `target` of the output.
struct RowMove {
  int64_t source, target;
};

struct BaseRows {
  using Args = EagleGetHiddenStatesArgs;

  static __device__ __forceinline__ RowMove move(const Args& a) {
    const int64_t r = blockIdx.x, b = a.batch_id_per_token[r];
    if (b < 0 || b >= a.B) return {-1, r};
    return {base_row(r, a.cu_seqlens_q[b], a.base_model_cu_seqlens_q[b], a.base_model_cu_seqlens_q[b + 1], a.T_cap), r};
  }
  static __device__ __forceinline__ char* to(const Args& a) { return a.out; }
};

// `Active::yes(a, b)`: whether slot b continues. All threads of the block.
template <typename Args, typename Active>
__device__ __forceinline__ RowMove last_row_move(const Args& a) {
  const int64_t own = blockIdx.x;
  Sums<2> counts;  // active slots before the block's own, and of all
  counts.clear();
  for (int64_t b = threadIdx.x; b < a.B; b += kEagleThreads) {
    const bool active = Active::yes(a, b);
    counts.of[0] += active && b < own;
    counts.of[1] += active;
  }
  const Sums<2> sums = scan_slots<SlotShape<kEagleThreads, 1>>(counts).total;
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
    a.output_token_num[0] = static_cast<int32_t>(sums.of[1]);
  }
  if (own >= a.B) return {-1, -1};  // no slots: the block is there for the count
  if (!Active::yes(a, own)) return {-1, int64_t{sums.of[1]} + own - sums.of[0]};
  return {last_row(a.cu_seqlens_q[own], a.cu_seqlens_q[own + 1], a.T_cap), sums.of[0]};
}

struct FedSlots {
  using Args = EagleGatherHiddenStatesArgs;

  static __device__ __forceinline__ bool yes(const Args& a, int64_t b) {
    return a.cu_seqlens_q[b + 1] > a.cu_seqlens_q[b];
  }
  static __device__ __forceinline__ RowMove move(const Args& a) { return last_row_move<Args, FedSlots>(a); }
  static __device__ __forceinline__ char* to(const Args& a) { return a.last_hidden; }
};

struct NextSlots {
  using Args = EagleGetSelfHiddenStatesArgs;

  static __device__ __forceinline__ bool yes(const Args& a, int64_t b) { return a.seq_lens_this_time[b] > 0; }
  static __device__ __forceinline__ RowMove move(const Args& a) { return last_row_move<Args, NextSlots>(a); }
  static __device__ __forceinline__ char* to(const Args& a) { return a.last_hidden; }
};

template <typename Rows, typename Unit>
__global__ void __launch_bounds__(kEagleThreads)
    eagle_rows_kernel(const __grid_constant__ typename Rows::Args a, int64_t row_units) {
  wait_for_previous();
  let_next_start();
  const RowMove move = Rows::move(a);
  if (move.target < 0) return;
  const Unit* from = reinterpret_cast<const Unit*>(a.x) + max64(move.source, 0) * row_units;
  Unit* to = reinterpret_cast<Unit*>(Rows::to(a)) + move.target * row_units;
  const int64_t first = int64_t{blockIdx.y} * kEagleChunk + threadIdx.x;
  Unit units[kEagleUnits];
#pragma unroll
  for (unsigned k = 0; k < kEagleUnits; ++k) {
    const int64_t i = first + k * kEagleThreads;
    units[k] = move.source >= 0 && i < row_units ? from[i] : Unit{};
  }
#pragma unroll
  for (unsigned k = 0; k < kEagleUnits; ++k) {
    const int64_t i = first + k * kEagleThreads;
    if (i < row_units) to[i] = units[k];
  }
}

namespace {

template <typename Rows, typename Unit>
void launch_rows(const char* op, const typename Rows::Args& a, int64_t rows, cudaStream_t stream) {
  const int64_t row_units = a.x_row_bytes / static_cast<int64_t>(sizeof(Unit));
  const int64_t parts = blocks_for(row_units, kEagleChunk);
  if (parts > 0xFFFF) {  // blocks along y
    throw std::invalid_argument(std::string(op) + ": rows of " + std::to_string(a.x_row_bytes) +
                                " bytes are too wide; align them to 16 bytes, or pass narrower ones");
  }
  const dim3 grid(blocks_for(rows, 1), static_cast<unsigned>(parts));
  launch(op, stream, {grid, kEagleThreads}, eagle_rows_kernel<Rows, Unit>, a, row_units);
}

// In the widest units into which rows and both addresses can be divided. `rows`: blocks along x, at least one.
template <typename Rows>
void move_eagle_rows(const char* op, const typename Rows::Args& a, const char* out, int64_t rows, cudaStream_t stream) {
  const uint64_t all =
      reinterpret_cast<uint64_t>(a.x) | reinterpret_cast<uint64_t>(out) | static_cast<uint64_t>(a.x_row_bytes);
  if (all % 16 == 0) return launch_rows<Rows, uint4>(op, a, rows, stream);
  if (all % 4 == 0) return launch_rows<Rows, uint32_t>(op, a, rows, stream);
  launch_rows<Rows, uint16_t>(op, a, rows, stream);
}

}  // namespace

void eagle_get_hidden_states(const EagleGetHiddenStatesArgs& a, cudaStream_t stream) {
  if (a.T_cap > 0) move_eagle_rows<BaseRows>("eagle_get_hidden_states", a, a.out, a.T_cap, stream);
}
SPECDEC_OP(eagle_get_hidden_states, kLimits)

void eagle_gather_hidden_states(const EagleGatherHiddenStatesArgs& a, cudaStream_t stream) {
  move_eagle_rows<FedSlots>("eagle_gather_hidden_states", a, a.last_hidden, a.B, stream);
}
SPECDEC_OP(eagle_gather_hidden_states, kLimits)

void eagle_get_self_hidden_states(const EagleGetSelfHiddenStatesArgs& a, cudaStream_t stream) {
  move_eagle_rows<NextSlots>("eagle_get_self_hidden_states", a, a.last_hidden, a.B, stream);
}
SPECDEC_OP(eagle_get_self_hidden_states, kLimits)

}  // namespace specdec::cuda
