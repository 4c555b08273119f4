// The parameters of the rows that a cluster samples, for sample_target and processed_probs.
#pragma once

#include "row_tiles.h"

#include "specdec/row_sample.h"

namespace specdec {

// A row's parameters in SM. Core 0 fetches them while all look for the row's largest logit; the next sync publishes
// them.
struct RowRequest {
  SamplingParams params;
  int64_t seed;
};

// Of the arguments of either op.
template <class Args>
static inline __device__ void fetch_params(const Args& a, int64_t row, RowRequest* request) {
  if (core_id() != 0) return;
  GM2SM_ASYNC(a.row_temperature + row, &request->params.temperature, sizeof(float));
  GM2SM_ASYNC(a.row_top_p + row, &request->params.top_p, sizeof(float));
  GM2SM_ASYNC(a.row_min_p + row, &request->params.min_p, sizeof(float));
  GM2SM_ASYNC(a.row_top_k + row, &request->params.top_k, sizeof(int32_t));
}

}  // namespace specdec
