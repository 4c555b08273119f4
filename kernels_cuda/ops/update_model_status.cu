#include "launch.cuh"
#include "ops.h"
#include "update_model_status.cuh"

namespace specdec::cuda {
namespace {

constexpr const char* kOp = "update_model_status";

template <unsigned kLanes>
void launch_status(const StatusArgs& a, cudaStream_t stream) {
  constexpr int64_t kTeams = kStatusThreads / kLanes;  // of a block
  if (a.slots <= kTeams) {
    launch(kOp, stream, {1, kStatusThreads}, update_model_status_kernel<kLanes>, a);
  } else {
    launch(kOp, stream, {blocks_for(a.slots, kTeams), kStatusThreads}, advance_slots_kernel<kLanes>, a);
    launch(kOp, stream, {1, 1024}, has_running_kernel, a.stop_flags, a.slots, a.has_running);
  }
}

}  // namespace

void update_model_status(const StatusArgs& a, cudaStream_t stream) {
  if (a.draft_width <= 8) return launch_status<8>(a, stream);
  if (a.draft_width <= 16) return launch_status<16>(a, stream);
  launch_status<32>(a, stream);
}

}  // namespace specdec::cuda
