// part_listed: a block a row, a thread for each element that a rank has sent.
#include <string>

#include "launch.cuh"
#include "ops.h"
#include "row_parts.cuh"
#include "specdec/philox.h"
#include "specdec_ops/part_listed.h"
#include "warp.cuh"

namespace specdec::cuda {

constexpr int kCandidateThreads = 256;

// Elements in the row's order, and what they weigh: each, all up to each, and what is kept of each.
struct Candidates {
  int64_t unordered[kCandidateThreads], key[kCandidateThreads];
  uint64_t upto[kCandidateThreads], kept[kCandidateThreads];
  uint64_t parts[2][kCandidateThreads / kWarp];
  int reached;  // the first that reaches top_p's share
};

__global__ void __launch_bounds__(kCandidateThreads) part_listed_kernel(const __grid_constant__ PartListedArgs a) {
  __shared__ Candidates s;
  wait_for_previous();
  let_next_start();
  const int64_t r = blockIdx.x;
  const int i = static_cast<int>(threadIdx.x), n = static_cast<int>(a.Ranks * a.Listed);
  if (i == 0) {
    a.drawn[r] = kNowhere;
    s.reached = n;
  }
  const SamplingParams params = params_of(a, r);
  const Filters filters(params, a.vocab_size);
  const int64_t position = a.position[r];
  if (position < 0 || is_greedy(params) || !filters.by_count) return;
  if (i < n) s.unordered[i] = a.first_of_ranks[(i / a.Listed * a.R_cap + r) * a.Listed + i % a.Listed];
  __syncthreads();
  if (i < n) {
    const int64_t own = s.unordered[i];
    int before = 0;
    for (int j = 0; j < n; ++j) before += s.unordered[j] > own || (s.unordered[j] == own && j < i) ? 1 : 0;
    s.key[before] = own;
  }
  __syncthreads();

  if (!has_distribution(order_key_of(s.key[0]))) return;
  const Softmax softmax = {value_of(s.key[0]), drawn_at(params.temperature)};
  const int64_t key = i < n ? s.key[i] : kNowhere;
  const uint64_t mass = i < n ? softmax(value_of(key)) : 0;
  uint64_t all;
  const uint64_t in_warp = warp_inclusive(mass);
  s.upto[i] = block_warps_below(__shfl_sync(kAllLanes, in_warp, kWarp - 1), s.parts[0], &all) + in_warp;
  __syncthreads();
  const int last = static_cast<int>(min64(params.top_k, n)) - 1;
  const uint64_t need = nucleus(params.top_p, s.upto[last]);
  if (i < n && s.upto[i] >= need && (i == 0 || s.upto[i - 1] < need)) s.reached = i;
  __syncthreads();
  const int end = filters.by_mass ? s.reached : last;

  const uint64_t kept = i <= end && mass >= filters.least ? mass : 0;
  s.kept[i] = kept;
  uint64_t total;
  block_warps_below(warp_sum(kept), s.parts[1], &total);
  if (kept == 0) return;
  const uint64_t point = draw_point(philox_words(a.row_seed[r], position, a.purpose).u64(), total);
  const int64_t token = token_of(key);
  uint64_t before = 0;
  for (int j = 0; j <= end; ++j) {
    if (token_of(s.key[j]) < token) before += s.kept[j];
  }
  if (before <= point && point - before < kept) a.drawn[r] = key;
}

void part_listed(const PartListedArgs& a, cudaStream_t stream) {
  if (a.Ranks < 1 || a.Listed < 1 || a.Ranks * a.Listed > kCandidateThreads) {
    throw std::invalid_argument("first_of_ranks: expected 1 to " + std::to_string(kCandidateThreads) +
                                " elements of all ranks for a row, got " + std::to_string(a.Ranks) + " times " +
                                std::to_string(a.Listed) + "; let ranks tell fewer");
  }
  if (a.R_cap == 0) return;
  launch("part_listed", stream, {dim3(static_cast<unsigned>(a.R_cap)), dim3(kCandidateThreads)}, part_listed_kernel, a);
}
SPECDEC_OP(part_listed, kLimits)

}  // namespace specdec::cuda
