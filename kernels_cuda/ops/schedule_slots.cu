#include "schedule_slots.cuh"

#include "launch.cuh"
#include "ops.h"

namespace specdec::cuda {

void schedule_slots(const ScheduleSlotsArgs& a, cudaStream_t stream) {
  if (a.B == 0) return;
  // Few slots with long chunks are copied by more than a block each.
  constexpr int64_t kBlocks = 264;
  const unsigned share = blocks_for(a.I_cap, kScheduleThreads * kScheduleEach, max64(kBlocks / a.B, 1));
  launch("schedule_slots", stream, {dim3(share, static_cast<unsigned>(a.B)), kScheduleThreads}, schedule_slots_kernel,
         a);
}

}  // namespace specdec::cuda
