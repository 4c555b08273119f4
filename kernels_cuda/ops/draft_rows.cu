// gather_draft_logits: blocks (b, y) move a part of each row of slot b; each sums the previous slots.
// insert_first_token: one block, a thread for neighbouring slots.
#include "register_tokens.cuh"
#include "slot_launch.cuh"
#include "specdec/draft_rows.h"
#include "specdec_ops/gather_draft_logits.h"
#include "specdec_ops/insert_first_token.h"

namespace specdec::cuda {

constexpr unsigned kDraftThreads = 256;
constexpr unsigned kDraftUnits = 4;  // of a thread, on their way at a time
constexpr unsigned kDraftChunk = kDraftThreads * kDraftUnits;

__device__ __forceinline__ Sums<2> sums_of(const DraftShare& share) {
  return {{static_cast<uint32_t>(share.next), static_cast<uint32_t>(share.batch)}};
}

template <typename Unit>
__device__ __forceinline__ void move_part(const Unit* from, Unit* to, int64_t row_units) {
  const int64_t first = int64_t{blockIdx.y} * kDraftChunk + threadIdx.x;
  Unit units[kDraftUnits];
#pragma unroll
  for (unsigned k = 0; k < kDraftUnits; ++k) {
    const int64_t i = first + k * kDraftThreads;
    units[k] = i < row_units ? from[i] : Unit{};
  }
#pragma unroll
  for (unsigned k = 0; k < kDraftUnits; ++k) {
    const int64_t i = first + k * kDraftThreads;
    if (i < row_units) to[i] = units[k];
  }
}

template <typename Unit>
__global__ void __launch_bounds__(kDraftThreads)
    gather_draft_logits_kernel(const __grid_constant__ GatherDraftLogitsArgs a, int64_t row_units) {
  wait_for_previous();
  let_next_start();
  const int64_t own = blockIdx.x;
  const auto share_of = [&](int64_t b) { return draft_share(a.seq_lens_this_time[b], a.seq_lens_encoder[b], a.R_cap); };
  Sums<2> earlier;
  earlier.clear();
  for (int64_t b = threadIdx.x; b < own; b += kDraftThreads) earlier.add(sums_of(share_of(b)));
  const Sums<2> before = scan_slots<SlotShape<kDraftThreads, 1>>(earlier).total;
  const bool leads = blockIdx.y == 0 && threadIdx.x == 0;
  if (leads && own == 0) a.cu_next_token_offset[0] = a.cu_batch_token_offset[0] = 0;
  if (own >= a.B) return;  // no slots: the block is there for the first offsets
  const DraftShare share = share_of(own);
  if (leads) {
    Sums<2> after = before;
    after.add(sums_of(share));
    a.next_token_num[own] = static_cast<int32_t>(share.next);
    a.batch_token_num[own] = static_cast<int32_t>(share.batch);
    a.cu_next_token_offset[own + 1] = static_cast<int32_t>(after.of[0]);
    a.cu_batch_token_offset[own + 1] = static_cast<int32_t>(after.of[1]);
  }
  const int64_t target = before.of[1];
  Unit* to = static_cast<Unit*>(a.draft_logits);
  if (share.has_first() && target < a.D_cap) {
    move_part(static_cast<const Unit*>(a.first_token_logits) + own * row_units, to + target * row_units, row_units);
  }
  const DraftRows rows = draft_rows(share, before.of[0], target, a.R_cap, a.D_cap);
  for (int64_t i = 0; i < rows.count; ++i) {
    const Unit* from = static_cast<const Unit*>(a.logits) + (rows.source + i) * row_units;
    move_part(from, to + (rows.target + i) * row_units, row_units);
  }
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads)
    insert_first_token_kernel(const __grid_constant__ InsertFirstTokenArgs a) {
  wait_for_previous();
  let_next_start();
  const int64_t first = int64_t{threadIdx.x} * Shape::kEach, end = min64(first + Shape::kEach, a.B);
  const auto share_of = [&](int64_t b) { return draft_share(a.seq_lens_this_time[b], a.seq_lens_encoder[b], a.R_cap); };
  Sums<2> own;
  own.clear();
  for (int64_t b = first; b < end; ++b) own.add(sums_of(share_of(b)));
  Sums<2> before = scan_slots<Shape>(own).before;
  for (int64_t b = first; b < end; ++b) {
    const DraftShare share = share_of(b);
    const int64_t target = before.of[1], accepted = a.accept_tokens[b * a.S];
    const DraftRows rows = draft_rows(share, before.of[0], target, a.R_cap, a.D_cap);
    const RegisterTokens<4> next(a.next_tokens + rows.source, rows.count);
    if (share.has_first() && target < a.D_cap) a.draft_token_ids[target] = accepted;
    next.each(0, rows.count, [&](int64_t i, int64_t token) { a.draft_token_ids[rows.target + i] = token; });
    before.add(sums_of(share));
  }
}

namespace {

template <typename Unit>
void launch_gather(const GatherDraftLogitsArgs& a, int64_t row_bytes, cudaStream_t stream) {
  const int64_t row_units = row_bytes / static_cast<int64_t>(sizeof(Unit));
  const dim3 grid(blocks_for(a.B, 1), blocks_for(row_units, kDraftChunk));
  launch("gather_draft_logits", stream, {grid, kDraftThreads}, gather_draft_logits_kernel<Unit>, a, row_units);
}

}  // namespace

// In the widest units into which rows and all addresses can be divided.
void gather_draft_logits(const GatherDraftLogitsArgs& a, cudaStream_t stream) {
  const int64_t row_bytes = a.V * (a.logits_type == FloatType::kFloat32 ? 4 : 2);
  const uint64_t all = reinterpret_cast<uint64_t>(a.logits) | reinterpret_cast<uint64_t>(a.first_token_logits) |
                       reinterpret_cast<uint64_t>(a.draft_logits) | static_cast<uint64_t>(row_bytes);
  if (all % 16 == 0) return launch_gather<uint4>(a, row_bytes, stream);
  if (all % 4 == 0) return launch_gather<uint32_t>(a, row_bytes, stream);
  launch_gather<uint16_t>(a, row_bytes, stream);
}
SPECDEC_OP(gather_draft_logits, kLimits)

void insert_first_token(const InsertFirstTokenArgs& a, cudaStream_t stream) {
  with_slot_shape(a.B, [&](auto shape) {
    launch("insert_first_token", stream, {1, shape.kThreads}, insert_first_token_kernel<decltype(shape)>, a);
  });
}
SPECDEC_OP(insert_first_token, kLimits)

}  // namespace specdec::cuda
