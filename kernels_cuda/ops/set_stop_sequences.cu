#include "set_stop_sequences.cuh"

#include "launch.cuh"
#include "ops.h"

namespace specdec::cuda {

void set_stop_sequences(const SetStopSequencesArgs& a, cudaStream_t stream) {
  launch("set_stop_sequences", stream, {blocks_for(a.M, kStopThreads / kWarp), kStopThreads},
         set_stop_sequences_kernel, a);
}

}  // namespace specdec::cuda
