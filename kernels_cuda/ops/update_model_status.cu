// update_model_status: a team of lanes per slot, lane i for the accepted token at i. `has_running` depends on all
// slots: beyond one block a second launch reads the flags (measured: faster than a cluster).
#include "launch.cuh"
#include "ops.h"
#include "specdec/status.h"
#include "specdec_ops/update_model_status.h"
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
__device__ __forceinline__ bool advance_slots(const UpdateModelStatusArgs& a, int64_t team, int64_t teams) {
  const unsigned lane = Team<kLanes>::rank();
  bool running = false;
  for (int64_t first = team - team % (kWarp / kLanes); first < a.B; first += teams) {
    const int64_t b = first + team % (kWarp / kLanes);
    const bool in_use = b < a.B;
    LaneTokens<kLanes> tokens = {in_use && lane < a.S ? a.accept_tokens[b * a.S + lane] : -1};
    SlotStatus slot = {};
    bool paused = false;
    int64_t prompt_len = 0, max_dec_len = 0, end_count = a.E;
    if (in_use) {
      slot = {a.step_idx[b],           a.seq_lens_encoder[b], a.seq_lens_decoder[b],
              a.seq_lens_this_time[b], a.accept_num[b],       a.stop_flags[b]};
      paused = a.is_block_step[b];
      prompt_len = a.prompt_lens[b];
      max_dec_len = a.max_dec_len[b];
      if (a.ignore_end != nullptr && a.ignore_end[b]) end_count = 0;
    }
    const int64_t* ends = a.end_tokens;
    if (a.end_at_limit) {
      const bool emitted = in_use && !slot.stopped && !paused && lane < clamp64(slot.accept_num, 0, a.S);
      int64_t token = tokens.own;
      const uint32_t ending = Team<kLanes>::ballot(
          emitted && ends_slot(slot.step_idx, int64_t{lane}, max_dec_len, ends, end_count, &token));
      if (ending != 0) {
        const unsigned end = static_cast<unsigned>(__ffs(static_cast<int>(ending))) - 1;
        slot.accept_num = static_cast<int32_t>(end + 1);
        if (lane == end) a.accept_tokens[b * a.S + lane] = tokens.own = token;
      }
    }
    LastToken last = {tokens.at(clamp64(slot.accept_num, 1, a.S) - 1)};
    __syncwarp();  // all lanes have read what the first one overwrites
    if (!in_use) continue;
    const StatusMoves moves = advance_slot(&slot, paused, prompt_len, max_dec_len, a.S, a.L, last, ends, end_count);
    if (lane < moves.fits) a.token_ids_all[b * a.L + moves.start + lane] = tokens.own;
    if (lane == 0) {
      if (moves.count > 0) a.draft_tokens[b * a.S] = last.token;
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
__global__ void __launch_bounds__(kStatusThreads)
    update_model_status_kernel(const __grid_constant__ UpdateModelStatusArgs a) {
  wait_for_previous();
  let_next_start();
  const bool any = advance_slots<kLanes>(a, threadIdx.x / kLanes, kStatusThreads / kLanes);
  const bool running = __syncthreads_or(any) != 0;
  if (threadIdx.x == 0) a.has_running[0] = running;
}

// Any number of blocks; has_running is left to `has_running_kernel`.
template <unsigned kLanes>
__global__ void __launch_bounds__(kStatusThreads)
    advance_slots_kernel(const __grid_constant__ UpdateModelStatusArgs a) {
  wait_for_previous();
  let_next_start();
  const int64_t thread = int64_t{blockIdx.x} * kStatusThreads + threadIdx.x;
  advance_slots<kLanes>(a, thread / kLanes, int64_t{gridDim.x} * kStatusThreads / kLanes);
}

// One block.
__global__ void has_running_kernel(const Flag* stop_flags, int64_t slots, Flag* has_running) {
  wait_for_previous();
  let_next_start();
  bool running = false;
#pragma unroll 8
  for (int64_t b = threadIdx.x; b < slots; b += blockDim.x) running |= !stop_flags[b];
  running = __syncthreads_or(running) != 0;
  if (threadIdx.x == 0) has_running[0] = running;
}

namespace {

constexpr const char* kOp = "update_model_status";

template <unsigned kLanes>
void launch_status(const UpdateModelStatusArgs& a, cudaStream_t stream) {
  constexpr int64_t kTeams = kStatusThreads / kLanes;  // of a block
  if (a.B <= kTeams) {
    launch(kOp, stream, {1, kStatusThreads}, update_model_status_kernel<kLanes>, a);
  } else {
    launch(kOp, stream, {blocks_for(a.B, kTeams), kStatusThreads}, advance_slots_kernel<kLanes>, a);
    launch(kOp, stream, {1, 1024}, has_running_kernel, a.stop_flags, a.B, a.has_running);
  }
}

}  // namespace

void update_model_status(const UpdateModelStatusArgs& a, cudaStream_t stream) {
  if (a.S <= 8) return launch_status<8>(a, stream);
  if (a.S <= 16) return launch_status<16>(a, stream);
  launch_status<32>(a, stream);
}
SPECDEC_OP(update_model_status, kLimits)

}  // namespace specdec::cuda
