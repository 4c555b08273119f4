// build_sampling_params: a thread per row; loads a slot's parameters together.
#include "launch.cuh"
#include "ops.h"
#include "specdec/integers.h"
#include "specdec/seeds.h"
#include "specdec_ops/build_sampling_params.h"
#include "warp.cuh"

namespace specdec::cuda {

__global__ void build_sampling_params_kernel(const __grid_constant__ BuildSamplingParamsArgs a) {
  wait_for_previous();
  let_next_start();
  const int64_t r = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (r >= a.R_cap) return;
  if (r < a.B) {  // on the way to the cache while rows ask for their slots
    ptx::prefetch(a.temperature + r);
    ptx::prefetch(a.top_p + r);
    ptx::prefetch(a.top_k + r);
    ptx::prefetch(a.min_p + r);
    ptx::prefetch((a.infer_seed == nullptr ? a.seed : a.infer_seed) + r);
    ptx::prefetch(a.prompt_lens + r);
    ptx::prefetch(a.step_idx + r);
    ptx::prefetch(a.cu_seqlens_q_output + r);
  }
  const int32_t b = a.batch_id_per_token_output[r];
  float temperature = 1.0f, top_p = 1.0f, min_p = 0.0f;
  int32_t top_k = 0;
  int64_t seed = 0, position = -1;
  if (b >= 0 && b < a.B) {
    temperature = a.temperature[b];
    top_p = a.top_p[b];
    top_k = a.top_k[b];
    min_p = a.min_p[b];
    const int64_t i = r - a.cu_seqlens_q_output[b];
    seed = a.infer_seed == nullptr ? a.seed[b] : advanced_seed(a.infer_seed[b], a.row_seed_step, i, a.seed_modulus);
    position = wrap_add(wrap_add(a.prompt_lens[b], a.step_idx[b]), i);
  }
  a.row_temperature[r] = temperature;
  a.row_top_p[r] = top_p;
  a.row_top_k[r] = top_k;
  a.row_min_p[r] = min_p;
  a.row_seed[r] = seed;
  a.position[r] = position;
}

// After the rows, which have read them.
__global__ void advance_seeds_kernel(const __grid_constant__ BuildSamplingParamsArgs a) {
  wait_for_previous();
  let_next_start();
  const int64_t b = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (b < a.B) a.infer_seed[b] = advanced_seed(a.infer_seed[b], a.seed_increment, 1, a.seed_modulus);
}

void build_sampling_params(const BuildSamplingParamsArgs& a, cudaStream_t stream) {
  constexpr unsigned kThreads = 64;
  launch("build_sampling_params", stream, {blocks_for(a.R_cap, kThreads), kThreads}, build_sampling_params_kernel, a);
  if (a.infer_seed == nullptr) return;
  launch("build_sampling_params", stream, {blocks_for(a.B, kThreads), kThreads}, advance_seeds_kernel, a);
}
SPECDEC_OP(build_sampling_params, kLimits)

}  // namespace specdec::cuda
