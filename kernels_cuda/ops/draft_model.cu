// draft_model_preprocess: several lanes per slot. draft_model_update and draft_model_postprocess: a thread per slot;
// the former is one block, as has_running and the positions of tokens depend on all slots.
#include "slot_launch.cuh"
#include "specdec/draft_model.h"
#include "specdec_ops/draft_model_postprocess.h"
#include "specdec_ops/draft_model_preprocess.h"
#include "specdec_ops/draft_model_update.h"

namespace specdec::cuda {

template <typename Args>
__device__ __forceinline__ DraftSlot load_draft_slot(const Args& a, int64_t b) {
  return {a.step_idx[b], a.seq_lens_encoder[b], a.seq_lens_decoder[b], a.seq_lens_this_time[b], a.stop_flags[b]};
}

template <typename Args>
__device__ __forceinline__ void store_draft_slot(const Args& a, int64_t b, const DraftSlot& slot) {
  a.step_idx[b] = slot.step_idx;
  a.seq_lens_encoder[b] = slot.enc;
  a.seq_lens_decoder[b] = slot.dec;
  a.seq_lens_this_time[b] = slot.slt;
}

template <typename Args>
__device__ __forceinline__ void note_token(const Args& a, int64_t b, int64_t column, int64_t token) {
  if (column >= 0 && column < a.P) a.pre_ids[b * a.P + column] = token;
}

// All threads of the block.
__device__ __forceinline__ void set_running(bool mine, Flag* has_running) {
  const bool running = __syncthreads_or(mine) != 0;
  if (threadIdx.x == 0) has_running[0] = running;
}

constexpr unsigned kStartThreads = 256, kStartLanes = 8;  // lanes of a slot
constexpr unsigned kStartSlots = kStartThreads / kStartLanes;

// Lanes of a slot share its tokens. The first block also reads all slots for has_running; others may already have
// updated them, but start_drafts gives the same decision again.
__global__ void __launch_bounds__(kStartThreads)
    draft_model_preprocess_kernel(const __grid_constant__ DraftModelPreprocessArgs a) {
  wait_for_previous();
  let_next_start();
  const auto start = [&](int64_t b, DraftSlot* slot) {
    *slot = load_draft_slot(a, b);
    const BaseSlot base = {a.base_model_step_idx[b], a.max_dec_len[b],     a.base_model_seq_lens_decoder[b],
                           a.accept_num[b],          a.draft_token_num[b], a.base_model_stop_flags[b]};
    return start_drafts(slot, base, a.I_cap, a.S, a.min_room, a.pre_ids != nullptr);
  };
  DraftSlot slot;
  if (blockIdx.x == 0) {
    bool running = false;
    for (int64_t b = threadIdx.x; b < a.B; b += kStartThreads) {
      start(b, &slot);
      running = running || !slot.stopped;
    }
    set_running(running, a.has_running);
  }
  const int64_t b = int64_t{blockIdx.x} * kStartSlots + threadIdx.x / kStartLanes;
  if (b >= a.B) return;
  const int64_t* accepted = a.accept_tokens + b * a.S;
  const int64_t lane = threadIdx.x % kStartLanes, own = lane < a.S ? accepted[lane] : -1;
  const AcceptedMoves moves = start(b, &slot);
  __syncwarp();  // all lanes have read the slot
  int64_t* to = moves.in_chunk ? a.input_ids + b * a.I_cap + slot.enc - 1 : a.draft_tokens + b * a.S;
  for (int64_t i = lane; i < a.S; i += kStartLanes) {
    if (i > 0) a.base_model_draft_tokens[b * a.S + i] = -1;
    if (i >= moves.count) continue;
    const int64_t token = i == lane ? own : accepted[i];
    to[i] = token;
    if (a.pre_ids != nullptr) note_token(a, b, wrap_add(moves.column, i), token);
  }
  if (lane != 0) return;
  store_draft_slot(a, b, slot);
  a.stop_flags[b] = slot.stopped;
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads)
    draft_model_update_kernel(const __grid_constant__ DraftModelUpdateArgs a) {
  wait_for_previous();
  let_next_start();
  const int64_t first = int64_t{threadIdx.x} * Shape::kEach, end = min64(first + Shape::kEach, a.B);
  Sums<1> active;
  active.clear();
  for (int64_t b = first; b < end; ++b) active.of[0] += a.seq_lens_this_time[b] > 0;
  int64_t rank = scan_slots<Shape>(active).before.of[0];
  bool running = false;
  for (int64_t b = first; b < end; ++b) {
    DraftSlot slot = load_draft_slot(a, b);
    if (slot.slt <= 0) continue;
    const int64_t token = rank < a.R_cap ? a.inter_next_tokens[rank] : -1;
    ++rank;
    const DraftMoves moves = a.pre_ids != nullptr
                                 ? advance_drafts_in_history(&slot, token, a.max_dec_len[b])
                                 : advance_drafts(&slot, token, a.substep, a.draft_token_num[b], a.max_dec_len[b], a.S);
    if (moves.feeds) a.draft_tokens[b * a.S] = moves.fed;
    if (a.substep + 1 < a.S) a.base_model_draft_tokens[b * a.S + a.substep + 1] = moves.draft;
    if (a.pre_ids != nullptr) note_token(a, b, moves.column, token);
    store_draft_slot(a, b, slot);
    running = running || slot.slt > 0;
  }
  set_running(running, a.has_running);
}

constexpr unsigned kCountThreads = 128;

__global__ void __launch_bounds__(kCountThreads)
    draft_model_postprocess_kernel(const __grid_constant__ DraftModelPostprocessArgs a) {
  wait_for_previous();
  let_next_start();
  const int64_t b = int64_t{blockIdx.x} * kCountThreads + threadIdx.x;
  if (b >= a.B) return;
  const int64_t* drafts = a.draft_tokens + b * a.S + 1;
  a.seq_lens_this_time[b] = drafted_tokens(a.seq_lens_this_time[b], a.seq_lens_encoder[b], a.seq_lens_decoder[b],
                                           a.stop_flags[b], drafts, a.S - 1);
}

void draft_model_preprocess(const DraftModelPreprocessArgs& a, cudaStream_t stream) {
  launch("draft_model_preprocess", stream, {blocks_for(a.B, kStartSlots), kStartThreads}, draft_model_preprocess_kernel,
         a);
}
SPECDEC_OP(draft_model_preprocess, kLimits)

void draft_model_update(const DraftModelUpdateArgs& a, cudaStream_t stream) {
  with_slot_shape(a.B, [&](auto shape) {
    launch("draft_model_update", stream, {1, shape.kThreads}, draft_model_update_kernel<decltype(shape)>, a);
  });
}
SPECDEC_OP(draft_model_update, kLimits)

void draft_model_postprocess(const DraftModelPostprocessArgs& a, cudaStream_t stream) {
  launch("draft_model_postprocess", stream, {blocks_for(a.B, kCountThreads), kCountThreads},
         draft_model_postprocess_kernel, a);
}
SPECDEC_OP(draft_model_postprocess, kLimits)

}  // namespace specdec::cuda
