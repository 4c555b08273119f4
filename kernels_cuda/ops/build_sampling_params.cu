#include "build_sampling_params.cuh"
#include "launch.cuh"
#include "ops.h"

namespace specdec::cuda {

void build_sampling_params(const SamplingParamsArgs& a, cudaStream_t stream) {
  constexpr unsigned kThreads = 64;
  launch("build_sampling_params", stream, {blocks_for(a.rows, kThreads), kThreads}, build_sampling_params_kernel, a);
}

}  // namespace specdec::cuda
