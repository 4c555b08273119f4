// The parameters of the rows that a cluster samples, for sample_target and processed_probs.
#pragma once

#include "row_tiles.h"

#include "specdec/rows/row_draw.h"

namespace specdec {

// A row's parameters in SM. Core 0 fetches those of the cluster's next row while all read this one; the next sync
// publishes them.
struct RowRequest {
  SamplingParams params;
  int64_t seed, position;
};

// Of the arguments of either op; nothing after the last row.
template <class Args>
static inline __device__ void fetch_params(const Args& a, int64_t row, RowRequest* request) {
  if (core_id() != 0 || row >= a.R_cap) return;
  GM2SM_ASYNC(a.row_temperature + row, &request->params.temperature, sizeof(float));
  GM2SM_ASYNC(a.row_top_p + row, &request->params.top_p, sizeof(float));
  GM2SM_ASYNC(a.row_min_p + row, &request->params.min_p, sizeof(float));
  GM2SM_ASYNC(a.row_top_k + row, &request->params.top_k, sizeof(int32_t));
  GM2SM_ASYNC(a.position + row, &request->position, sizeof(int64_t));
}

// body(row, turn, its request) for the rows of this cluster; the body meets in a sync before it waits for anything.
template <class Args, class Fetch, class Body>
static inline __device__ void each_row(const Args& a, RowRequest* requests, Fetch fetch, Body body) {
  ClusterTeam team;
  int turn = 0;
  fetch(a, cluster_id(), &requests[turn]);
  team.sync();
  for (int64_t r = cluster_id(); r < a.R_cap; r += cluster_num()) {
    const RowRequest request = requests[turn];
    fetch(a, r + cluster_num(), &requests[turn ^ 1]);
    body(r, turn, request);
    turn ^= 1;
  }
}

}  // namespace specdec
