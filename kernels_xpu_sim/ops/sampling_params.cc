#include "ops.h"

#include "../kernels/build_sampling_params.xpu"

namespace specdec::xpu {

void build_sampling_params(const SamplingParamsArgs& a, const LaunchOptions& options) {
  launch_items(options, a.rows, 16, build_sampling_params_kernel, a.temperature, a.top_p, a.top_k, a.min_p, a.seed,
               a.prompt_lens, a.step_idx, a.cu_seqlens_q_output, a.batch_id_per_token_output, a.row_temperature,
               a.row_top_p, a.row_top_k, a.row_min_p, a.row_seed, a.position, a.slots, a.rows);
}

}  // namespace specdec::xpu
