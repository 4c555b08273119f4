// What a row keeps under the sampling parameters, for sample_target and processed_probs.
#pragma once

#include "row_cut.cuh"
#include "specdec_ops/row_tensors.h"

namespace specdec::cuda {

// Puts the row's parameters into s.params and, if there are seeds, its random word into s.random; in all threads' sight
// after the next barrier.
__device__ __forceinline__ void read_params(const SamplingTensors& t, int64_t row, int64_t position, RowBoard& s) {
  if (threadIdx.x != 0) return;
  s.params = {t.temperature[row], t.top_p[row], t.min_p[row], t.top_k[row]};
  if (t.seed != nullptr) s.random = philox_words(t.seed[row], position, Purpose::kSample).u64();
}

// Loads the row's part and looks for its largest key.
template <class L, class Part>
__device__ __forceinline__ int32_t load_row(Part& part, RowBoard& s) {
  float top = -INFINITY, low = INFINITY;
  part.load([&](int v, const Elements<L>& elements, bool real) {
    const bool whole = real && part.whole(v);
#pragma unroll
    for (int j = 0; j < Part::kLength; ++j) {
      top = ptx::max_or_nan(top, elements.x[j]);
      if (whole) low = fminf(low, elements.x[j]);
    }
  });
  return meet_row(s, order_key(top), low);
}

// Puts the masses of a row whose largest key is `top` into s.softmax.
__device__ __forceinline__ void set_softmax(RowBoard& s, int32_t top) {
  if (threadIdx.x == 0) s.softmax = {key_value(top), div_rn(1.0f, s.params.temperature)};
  __syncthreads();
}

// The first top_k elements are few: whether top_k is set, and for the sorted list.
__device__ __forceinline__ bool is_short_list(const SamplingParams& params, int size) {
  return params.top_k > 0 && params.top_k < size && params.top_k <= kSorted;
}

// In the leader, with the first top_k elements sorted: the masses of those kept, in that order; s.cut and s.kept_total.
__device__ __forceinline__ void keep_sorted(RowBoard& s) {
  const SamplingParams params = s.params;
  const int i = static_cast<int>(threadIdx.x), k = params.top_k;
  if (i < k) s.sorted_mass[i] = s.softmax(s.sorted_value[i]);
  __syncthreads();
  if (i < k) {
    uint64_t before = 0, total = 0;
    for (int j = 0; j < k; ++j) {
      const uint64_t mass = s.sorted_mass[j];
      total += mass;
      if (j < i) before += mass;
    }
    const uint64_t need = max(threshold(params.top_p, total), uint64_t{1}), mass = s.sorted_mass[i];
    const bool by_mass = params.top_p < 1.0f, kept = !by_mass || before < need;
    if (kept && (i == k - 1 || (by_mass && before + mass >= need))) {
      s.cut = {order_key(s.sorted_value[i]), s.sorted_id[i]};
    }
    s.kept_mass[i] = kept && mass >= threshold(params.min_p, kMassOne) ? mass : 0;
  }
  __syncthreads();
  if (i == 0) {
    uint64_t total = 0;
    for (int j = 0; j < k; ++j) total += s.kept_mass[j];
    s.kept_total = total;
  }
  __syncthreads();
}

// In the leader, after keep_sorted: the token that a random word draws, in the one thread that has it; else -1.
__device__ __forceinline__ int draw_sorted(const RowBoard& s) {
  const int i = static_cast<int>(threadIdx.x), k = s.params.top_k;
  if (i >= k || s.kept_mass[i] == 0) return -1;
  const uint64_t point = draw_point(s.random, s.kept_total);
  const int id = s.sorted_id[i];
  uint64_t before = 0;
  for (int j = 0; j < k; ++j) {
    if (s.sorted_id[j] < id) before += s.kept_mass[j];
  }
  return before <= point && point - before < s.kept_mass[i] ? id : -1;
}

// What a sampled row keeps, and this warp's sum of it, where the first top_k elements are not few.
struct RowKept {
  Cut cut;
  uint64_t own;
};

__device__ __forceinline__ KeptMasses kept_by(const RowBoard& s, Cut cut) {
  return {s.softmax, cut, threshold(s.params.min_p, kMassOne)};
}

template <class L, class Part>
__device__ __forceinline__ RowKept keep_row(const Part& part, RowBoard& s) {
  const bool by_count = s.params.top_k > 0 && s.params.top_k < part.size(), by_mass = s.params.top_p < 1.0f;
  SoftmaxCut cut = {keep_all(), false, 0};
  // Not as a loop: what follows from the part alone would be kept in registers through all of it.
  if (by_count) {
    const float fraction = static_cast<float>(s.params.top_k) / static_cast<float>(part.size());
    cut = is_ordinary(s.softmax) ? cut_ordinary<L>(part, s, Goal::kCount, 0, fraction)
                                 : cut_infinite<L>(part, s, Goal::kCount, 0);
  }
  if (by_mass) {
    const uint64_t total = by_count ? s.kept.mass : 0;
    const float share = by_count ? static_cast<float>(total) / static_cast<float>(s.row_mass) : 1.0f;
    cut = is_ordinary(s.softmax) ? cut_ordinary<L>(part, s, Goal::kMass, total, s.params.top_p * share)
                                 : cut_infinite<L>(part, s, Goal::kMass, total);
  }
  if (cut.own_known && threshold(s.params.min_p, kMassOne) == 0) return {cut.cut, cut.own};
  return {cut.cut, warp_masses(part, kept_by(s, cut.cut))};
}

}  // namespace specdec::cuda
