// schedule_slots: blocks (x, b) share the chunk of slot b; the first one sets the slot's state.
#include "launch.cuh"
#include "ops.h"
#include "specdec/schedule.h"
#include "specdec_ops/schedule_slots.h"
#include "warp.cuh"

namespace specdec::cuda {

constexpr unsigned kScheduleThreads = 256;
constexpr int kScheduleEach = 4;  // tokens that a thread has on their way at a time

__global__ void __launch_bounds__(kScheduleThreads) schedule_slots_kernel(const __grid_constant__ ScheduleSlotsArgs a) {
  wait_for_previous();
  let_next_start();
  const int64_t b = blockIdx.y;
  const auto action = static_cast<SlotAction>(a.slot_actions[b]);
  const PrefillChunk chunk = prefill_chunk(action, a.chunk_starts[b], a.chunk_lens[b], a.I_cap, a.L);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    ScheduledSlot slot = {a.step_idx[b],           a.seq_lens_encoder[b], a.seq_lens_decoder[b],
                          a.seq_lens_this_time[b], a.stop_flags[b],       a.is_block_step[b]};
    schedule_slot(&slot, action, chunk, a.chunk_step_idx[b]);
    a.step_idx[b] = slot.step_idx;
    a.seq_lens_encoder[b] = slot.enc;
    a.seq_lens_decoder[b] = slot.dec;
    a.seq_lens_this_time[b] = slot.slt;
    a.stop_flags[b] = slot.stopped;
    a.is_block_step[b] = slot.paused;
  }
  const int64_t* from = a.token_ids_all + b * a.L + chunk.start;
  int64_t* to = a.input_ids + b * a.I_cap;
  const int64_t stride = int64_t{gridDim.x} * kScheduleThreads;
  const int64_t thread = int64_t{blockIdx.x} * kScheduleThreads + threadIdx.x;
  for (int64_t first = thread; first < chunk.count; first += kScheduleEach * stride) {
    int64_t tokens[kScheduleEach];
#pragma unroll
    for (int k = 0; k < kScheduleEach; ++k) {
      const int64_t i = first + k * stride;
      tokens[k] = i < chunk.count ? from[i] : 0;
    }
#pragma unroll
    for (int k = 0; k < kScheduleEach; ++k) {
      const int64_t i = first + k * stride;
      if (i < chunk.count) to[i] = tokens[k];
    }
  }
}

void schedule_slots(const ScheduleSlotsArgs& a, cudaStream_t stream) {
  if (a.B == 0) return;
  // Few slots with long chunks are copied by more than a block each.
  const int64_t blocks = 2 * device_sms("schedule_slots");
  const unsigned share = blocks_for(a.I_cap, kScheduleThreads * kScheduleEach, max64(blocks / a.B, 1));
  launch("schedule_slots", stream, {dim3(share, static_cast<unsigned>(a.B)), kScheduleThreads}, schedule_slots_kernel,
         a);
}
SPECDEC_OP(schedule_slots, kLimits)

}  // namespace specdec::cuda
