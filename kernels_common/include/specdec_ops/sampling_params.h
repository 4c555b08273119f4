// Arguments of build_sampling_params.
#pragma once

#include <cstdint>

namespace specdec {

struct SamplingParamsArgs {
  const float *temperature, *top_p;  // [M], as all up to step_idx
  const int32_t* top_k;
  const float* min_p;
  const int64_t *seed, *prompt_lens, *step_idx;
  const int32_t *cu_seqlens_q_output, *batch_id_per_token_output;  // [slots + 1], [rows]
  float *row_temperature, *row_top_p;                              // [rows], as all that follow
  int32_t* row_top_k;
  float* row_min_p;
  int64_t *row_seed, *position;
  int64_t slots, rows;
};

}  // namespace specdec
