// The kept elements of a row under sampling parameters, and its distribution, for sample_target and processed_probs.
#pragma once

#include "row_threshold.cuh"

namespace specdec::cuda {

// How to find the token: the first of the largest; the leader's sorted list; the chunks; kept masses.
enum class RowKind { kUndefined, kGreedy, kSorted, kChunks, kKept };

struct RowFound {
  RowKind kind;
  Threshold threshold;  // kKept, and for all in the leader's s.search.threshold of kSorted
  uint64_t own;  // kKept: this warp's masses
};

__device__ __forceinline__ bool is_short_list(const SamplingParams& params, int64_t size) {
  return Filters(params, size).by_count && params.top_k <= kSorted;
}

// 1/temperature at which the chunks are summed: 1 where only a log-probability needs them.
__device__ __forceinline__ float sums_at(const SamplingParams& params, int64_t size) {
  const bool by_tops = is_greedy(params) || is_short_list(params, size);
  return by_tops ? 1.0f : inverse_temperature(params.temperature);
}

// Reads the row's parameters and puts them into s.params; in all threads' sight after the next barrier.
template <class Args>
__device__ __forceinline__ SamplingParams read_params(const Args& a, int64_t row, RowShared& s) {
  const SamplingParams params = {a.row_temperature[row], a.row_top_p[row], a.row_min_p[row], a.row_top_k[row]};
  if (threadIdx.x == 0) s.params = params;
  return params;
}

// Loads the row's part into shared memory as needed, and returns its largest key. `raw`: the total at temperature 1 is
// needed too. `begun`: a reader of all stripes, or none.
template <class L, class Part, class... Begun>
__device__ __forceinline__ int32_t load_row(Part& part, RowShared& s, const SamplingParams& params, bool raw,
                                            Begun&... begun) {
  if (is_greedy(params) || is_short_list(params, part.size())) {
    if (raw) {
      ChunkSums<Part, Temperatures::kOne> sums{1.0f};
      const int32_t top = load_tops<L>(part, s, sums, begun...);
      keep_chunks(part, s, sums.own);
      return top;
    }
    NoChunks no_chunks;
    keep_chunks(part, s, {INFINITY, 0});  // not known
    return load_tops<L>(part, s, no_chunks, begun...);
  }
  ChunkSums<Part, Temperatures::kAll> sums{inverse_temperature(params.temperature)};
  part.load(typename Part::NoVectors(), sums, begun...);
  return meet_chunks(part, s, sums.own);
}

// In the leader, with the first top_k elements sorted: the masses of those kept, in that order; s.search.threshold and
// s.drawn.total.
__device__ __forceinline__ void keep_sorted(RowShared& s) {
  const SamplingParams params = s.params;
  const int i = static_cast<int>(threadIdx.x), k = params.top_k;
  if (i < k) s.short_list.mass[i] = s.softmax(s.top.sorted_value[i]);
  __syncthreads();
  if (i < k) {
    uint64_t before = 0, total = 0;
    for (int j = 0; j < k; ++j) {
      const uint64_t mass = s.short_list.mass[j];
      total += mass;
      if (j < i) before += mass;
    }
    const uint64_t need = nucleus(params.top_p, total), mass = s.short_list.mass[i];
    const bool by_mass = params.top_p < 1.0f, kept = !by_mass || before < need;
    if (kept && (i == k - 1 || (by_mass && before + mass >= need))) {
      s.search.threshold = {order_key(s.top.sorted_value[i]), s.top.sorted_id[i]};
    }
    s.short_list.kept[i] = kept && mass >= mass_threshold(params.min_p, kMassOne) ? mass : 0;
  }
  __syncthreads();
  if (i == 0) {
    uint64_t total = 0;
    for (int j = 0; j < k; ++j) total += s.short_list.kept[j];
    s.drawn.total = total;
  }
  __syncthreads();
}

// In the leader, after keep_sorted: the token that a random word draws, in the one thread that has it; else -1.
__device__ __forceinline__ int draw_sorted(const RowShared& s) {
  const int i = static_cast<int>(threadIdx.x), k = s.params.top_k;
  if (i >= k || s.short_list.kept[i] == 0) return -1;
  const uint64_t point = draw_point(s.drawn.random, s.drawn.total);
  const int id = s.top.sorted_id[i];
  uint64_t before = 0;
  for (int j = 0; j < k; ++j) {
    if (s.top.sorted_id[j] < id) before += s.short_list.kept[j];
  }
  return before <= point && point - before < s.short_list.kept[i] ? id : -1;
}

__device__ __forceinline__ KeptMasses kept_by(const RowShared& s, Threshold threshold) {
  return {s.softmax, threshold, mass_threshold(s.params.min_p, kMassOne)};
}

// The kept elements of a row with filters and a large top_k.
template <class L, class Part>
__device__ __forceinline__ RowFound keep_row(const Part& part, RowShared& s) {
  SoftmaxThreshold found = {keep_all(), false};
  const bool filters = Filters(s.params, part.size()).by_count || s.params.top_p < 1.0f;
  const uint64_t all = filters ? keep_shares(part, s) : 0;
  // Not a loop, which would keep values derived from the part in registers.
  if (Filters(s.params, part.size()).by_count) {
    found = softmax_threshold<L>(part, s, Goal::kCount, static_cast<uint64_t>(s.params.top_k));
  }
  if (s.params.top_p < 1.0f) {
    const uint64_t total = Filters(s.params, part.size()).by_count ? s.search.kept.mass : all;
    if (Filters(s.params, part.size()).by_count) Cluster::sync();  // all have read what the search writes
    found = softmax_threshold<L>(part, s, Goal::kMass, nucleus(s.params.top_p, total));
  }
  const KeptMasses kept = kept_by(s, found.threshold);
  const bool known = found.listed && kept.least == 0;
  return {RowKind::kKept, found.threshold, known ? add_listed(part, s, kept) : warp_masses(part, s, kept)};
}

// From a loaded row and its largest key to its distribution in s.softmax, for kSorted in the leader. All blocks get the
// same kind.
template <class L, class Part>
__device__ __forceinline__ RowFound filtered_row(const Part& part, RowShared& s, int32_t top) {
  RowFound found = {RowKind::kUndefined, keep_all(), 0};
  if (!has_distribution(top)) return found;
  const bool greedy = is_greedy(s.params);
  if (threadIdx.x == 0) {
    s.softmax = {key_value(top), greedy ? 1.0f : inverse_temperature(s.params.temperature)};
    s.drawn.total = kMassOne;
  }
  __syncthreads();
  if (greedy) {
    find_first(part, s, top);
    Cluster::sync();
    found.kind = RowKind::kGreedy;
    return found;
  }
  if (is_short_list(s.params, part.size())) {
    const int32_t pivot = pivot_key(s, s.params.top_k);
    collect_top(part, s, pivot);
    Cluster::sync();
    if (settle_top(part, s, s.params.top_k, pivot)) {
      if (Cluster::rank() == 0) {
        sort_top(s, s.params.top_k);
        keep_sorted(s);
      }
      found.kind = RowKind::kSorted;
      return found;
    }
    share_chunks(part, s, own_chunk(part, s));
  }
  if (!Filters(s.params, part.size()).any()) {
    found.kind = RowKind::kChunks;
    return found;
  }
  found = keep_row<L>(part, s);
  publish(s.published[kKeptMass], found.own);
  Cluster::sync();
  return found;
}

}  // namespace specdec::cuda
