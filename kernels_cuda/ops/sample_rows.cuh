// What a row keeps under the sampling parameters, for sample_target and processed_probs.
#pragma once

#include "row_cut.cuh"

namespace specdec::cuda {

// Whether top_k cuts the row, and whether what it leaves is few: for the sorted list.
__device__ __forceinline__ bool cuts_by_count(const SamplingParams& params, int size) {
  return params.top_k > 0 && params.top_k < size;
}
__device__ __forceinline__ bool is_short_list(const SamplingParams& params, int size) {
  return cuts_by_count(params, size) && params.top_k <= kSorted;
}

// What is looked for while a row is loaded: its largest element; the largest ones of every thread, for the first or the
// sorted list; or for a cut of many elements, a sample of it as well.
enum class RowLook { kLargest, kTops, kSample };

// Reads the row's parameters and puts them into s.params; in all threads' sight after the next barrier.
template <class Args>
__device__ __forceinline__ RowLook read_params(const Args& a, int64_t row, RowBoard& s) {
  const SamplingParams params = {a.row_temperature[row], a.row_top_p[row], a.row_min_p[row], a.row_top_k[row]};
  const int size = static_cast<int>(a.V);
  if (threadIdx.x == 0) s.params = params;
  if (!(params.temperature > 0.0f) || is_short_list(params, size)) return RowLook::kTops;
  return cuts_by_count(params, size) || params.top_p < 1.0f ? RowLook::kSample : RowLook::kLargest;
}

// Loads the row's part and looks for its largest key, and for what the row needs besides: for a sample also for what is
// low in it.
template <class L, class Part>
__device__ __forceinline__ int32_t load_row(Part& part, RowBoard& s, RowLook look) {
  if (look == RowLook::kLargest) return load_largest<L>(part, s);
  if (look == RowLook::kTops) return load_tops<L>(part, s);
  float top = -INFINITY, second = -INFINITY, low = INFINITY;
  part.template load<true>([&](int v, const Elements<L>& elements, bool real) {
    const bool whole = real && part.whole(v);
#pragma unroll
    for (int j = 0; j < Part::kLength; ++j) {
      second = fmaxf(second, fminf(top, elements.x[j]));
      top = ptx::max_or_nan(top, elements.x[j]);
      if (whole) low = fminf(low, elements.x[j]);
    }
  });
  s.thread_second[threadIdx.x] = second;
  return meet_row(s, order_key(top), low);
}

// Puts the masses of a row whose largest key is `top` into s.softmax.
__device__ __forceinline__ void set_softmax(RowBoard& s, int32_t top) {
  if (threadIdx.x == 0) s.softmax = {key_value(top), div_rn(1.0f, s.params.temperature)};
  __syncthreads();
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
  bool listed;  // the warps' sums by stretches are without what their lists keep
};

__device__ __forceinline__ KeptMasses kept_by(const RowBoard& s, Cut cut) {
  return {s.softmax, cut, threshold(s.params.min_p, kMassOne)};
}

template <class L, class Part>
__device__ __forceinline__ RowKept keep_row(const Part& part, RowBoard& s) {
  SoftmaxCut cut = {keep_all(), false, 0};
  // Not as a loop: what follows from the part alone would be kept in registers through all of it.
  if (cuts_by_count(s.params, part.size())) {
    const float fraction = static_cast<float>(s.params.top_k) / static_cast<float>(part.size());
    cut = is_ordinary(s.softmax) ? cut_ordinary<L>(part, s, Goal::kCount, 0, fraction, true)
                                 : cut_infinite<L>(part, s, Goal::kCount, 0);
  }
  if (s.params.top_p < 1.0f) {
    const bool again = cuts_by_count(s.params, part.size());
    const uint64_t total = again ? s.kept.mass : 0;
    const float share = again ? static_cast<float>(total) / static_cast<float>(s.row_mass) : 1.0f;
    cut = is_ordinary(s.softmax) ? cut_ordinary<L>(part, s, Goal::kMass, total, s.params.top_p * share, !again)
                                 : cut_infinite<L>(part, s, Goal::kMass, total);
  }
  if (cut.own_known && threshold(s.params.min_p, kMassOne) == 0) return {cut.cut, cut.own, true};
  const bool tail = !cuts_by_count(s.params, part.size()) && !(s.params.top_p < 1.0f);
  return {cut.cut, warp_masses(part, s, kept_by(s, cut.cut), tail), false};
}

}  // namespace specdec::cuda
