// update_model_status: a team of lanes a slot, lane i the accepted token at i. `has_running` is a result of all slots:
// more than a block of them take a second launch, which reads the flags (measured: less than a cluster's hand-over).
#pragma once

#include "specdec/status.h"
#include "specdec_ops/status.h"
#include "warp.cuh"

namespace specdec::cuda {

constexpr unsigned kStatusThreads = 256;

// The accepted tokens of a slot, one a lane of its team.
template <unsigned kLanes>
struct LaneTokens {
  int64_t own;

  // All lanes of the warp together, each with its own index.
  __device__ __forceinline__ int64_t at(int64_t i) const {
    return Team<kLanes>::get(own, static_cast<unsigned>(i) % kLanes);
  }
};

// What `advance_slot` reads of accepted tokens is the last one.
struct LastToken {
  int64_t token;

  __device__ __forceinline__ int64_t operator[](int64_t) const { return token; }
};

// Slots team, team + teams, ...; whether this thread's still run. All threads of the block together.
template <unsigned kLanes>
__device__ __forceinline__ bool advance_slots(const StatusArgs& a, int64_t team, int64_t teams) {
  const unsigned lane = Team<kLanes>::rank();
  bool running = false;
  for (int64_t first = team - team % (kWarp / kLanes); first < a.slots; first += teams) {
    const int64_t b = first + team % (kWarp / kLanes);
    const bool in_use = b < a.slots;
    const LaneTokens<kLanes> tokens = {in_use && lane < a.draft_width ? a.accept_tokens[b * a.draft_width + lane] : -1};
    SlotStatus slot = {};
    bool paused = false;
    int64_t prompt_len = 0, max_dec_len = 0;
    if (in_use) {
      slot = {a.step_idx[b],           a.seq_lens_encoder[b], a.seq_lens_decoder[b],
              a.seq_lens_this_time[b], a.accept_num[b],       a.stop_flags[b]};
      paused = a.is_block_step[b];
      prompt_len = a.prompt_lens[b];
      max_dec_len = a.max_dec_len[b];
    }
    LastToken last = {tokens.at(clamp64(slot.accept_num, 1, a.draft_width) - 1)};
    __syncwarp();  // all lanes have read what the first one overwrites
    if (!in_use) continue;
    const int64_t* ends = a.end_tokens;
    const StatusMoves moves = advance_slot(&slot, paused, prompt_len, max_dec_len, a.draft_width, a.row_width, last,
                                           ends, a.end_count);
    if (lane < moves.fits) a.token_ids_all[b * a.row_width + moves.start + lane] = tokens.own;
    if (lane == 0) {
      if (moves.count > 0) a.draft_tokens[b * a.draft_width] = last.token;
      a.step_idx[b] = slot.step_idx;
      a.seq_lens_encoder[b] = slot.enc;
      a.seq_lens_decoder[b] = slot.dec;
      a.seq_lens_this_time[b] = slot.slt;
      a.accept_num[b] = slot.accept_num;
      a.stop_flags[b] = slot.stopped;
    }
    running = running || !slot.stopped;
  }
  return running;
}

// One block.
template <unsigned kLanes>
__global__ void __launch_bounds__(kStatusThreads) update_model_status_kernel(const __grid_constant__ StatusArgs a) {
  wait_for_previous();
  let_next_start();
  const bool any = advance_slots<kLanes>(a, threadIdx.x / kLanes, kStatusThreads / kLanes);
  const bool running = __syncthreads_or(any) != 0;
  if (threadIdx.x == 0) a.has_running[0] = running;
}

// Any number of blocks; has_running is left to `has_running_kernel`.
template <unsigned kLanes>
__global__ void __launch_bounds__(kStatusThreads) advance_slots_kernel(const __grid_constant__ StatusArgs a) {
  wait_for_previous();
  let_next_start();
  const int64_t thread = int64_t{blockIdx.x} * kStatusThreads + threadIdx.x;
  advance_slots<kLanes>(a, thread / kLanes, int64_t{gridDim.x} * kStatusThreads / kLanes);
}

// One block.
__global__ void has_running_kernel(const bool* stop_flags, int64_t slots, bool* has_running) {
  wait_for_previous();
  let_next_start();
  bool running = false;
#pragma unroll 8
  for (int64_t b = threadIdx.x; b < slots; b += blockDim.x) running |= !stop_flags[b];
  running = __syncthreads_or(running) != 0;
  if (threadIdx.x == 0) has_running[0] = running;
}

}  // namespace specdec::cuda
