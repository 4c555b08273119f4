// Passes over a row that sum masses.
#pragma once

#include "row_board.cuh"
#include "specdec/row_sample.h"

namespace specdec::cuda {

// Masses of a row that is ordinary (see below) and has 1/temperature > 0: no t is NaN, which saves operations. The same
// bits as Softmax.
struct OrdinarySoftmax {
  Softmax softmax;

  // Of exp2_mass_at; the larger, the less a logit weighs.
  __device__ __forceinline__ float depth(float logit) const {
    return __saturatef(mul_rn(mul_rn(sub_rn(logit, softmax.row_max), softmax.inv_temperature), kDepth * kLog2E));
  }
  __device__ __forceinline__ uint64_t operator()(float logit) const { return exp2_mass_at(depth(logit)); }
};

// The same at any temperature.
struct FiniteSoftmax {
  Softmax softmax;

  __device__ __forceinline__ uint64_t operator()(float logit) const {
    return logit > -INFINITY ? OrdinarySoftmax{softmax}(logit) : 0;
  }
};

// At temperature 1.
struct UnitSoftmax {
  float row_max;

  __device__ __forceinline__ uint64_t operator()(float logit) const {
    return exp2_mass_at(__saturatef(mul_rn(sub_rn(logit, row_max), kDepth * kLog2E)));
  }
};

// For any row.
struct AnySoftmax {
  Softmax softmax;

  __device__ __forceinline__ uint64_t operator()(float logit) const { return softmax(logit); }
};

// Without infinities in its maximum or in 1/temperature.
__device__ __forceinline__ bool is_ordinary(const Softmax& softmax) {
  return isfinite(softmax.row_max) && isfinite(softmax.inv_temperature);
}

// body(masses) with the quickest that give a row's bits.
template <class Body>
__device__ __forceinline__ auto with_masses(const Softmax& softmax, Body body) {
  return is_ordinary(softmax) && softmax.inv_temperature > 0.0f ? body(OrdinarySoftmax{softmax})
                                                                : body(AnySoftmax{softmax});
}

// Sums of this warp by stretches, in s.stretch_mass, and in all.
__device__ __forceinline__ void clear_stretches(RowBoard& s) {
  if (lane_id() <= kStretches) s.stretch_mass[ptx::anew(warp_id())][lane_id()] = 0;
  __syncwarp();
}
// Behind a stretch: `sum` is what this lane has in it.
__device__ __forceinline__ void end_stretch(RowBoard& s, int stretch, uint64_t& sum) {
  const uint64_t all = warp_sum(sum);
  if (lane_id() == 0) s.stretch_mass[ptx::anew(warp_id())][stretch] = all;
  sum = 0;
}
// In all lanes, behind a sweep: what is not in a stretch is the rest.
__device__ __forceinline__ uint64_t end_stretches(RowBoard& s, uint64_t& sum) {
  end_stretch(s, kStretches, sum);
  __syncwarp();
  return warp_sum(lane_id() <= kStretches ? s.stretch_mass[ptx::anew(warp_id())][lane_id()] : 0);
}

// Sum of all masses of this warp, in all lanes, after a `load` that kept the tail. Vectors beyond the row's ends are
// -inf, which has no mass.
template <class Part, class Masses>
__device__ __forceinline__ uint64_t all_masses(const Part& part, Masses masses) {
  uint64_t total = 0;
  part.sweep_tail_first(true, [&](int, const auto& elements, bool) {
#pragma unroll
    for (int j = 0; j < Part::kLength; ++j) total += masses(elements.x[j]);
  });
  return warp_sum(total);
}

// Kept masses a vector at a time.
template <class Masses>
struct VectorMasses {
  Masses masses;
  float low;  // the smallest value that is kept; of elements equal to it those with ids up to `last`
  int last;
  uint64_t least;

  __device__ __forceinline__ VectorMasses(const KeptMasses& kept, Masses of)
      : masses(of),
        low(kept.uncut() ? -INFINITY : key_value(kept.cut.key)),
        last(static_cast<int>(kept.cut.id)),
        least(kept.least) {}

  // The sum of a vector, if all is kept.
  template <class Elements>
  __device__ __forceinline__ uint64_t all(const Elements& elements) const {
    uint64_t total = 0;
#pragma unroll
    for (float x : elements.x) total += masses(x);
    return total;
  }
  // Without branches: what is not kept counts as -inf, which has no mass.
  __device__ __forceinline__ uint64_t of(float x, int id) const {
    const bool kept = (x > low) | ((x == low) & (id <= last));
    const uint64_t mass = masses(kept ? x : -INFINITY);
    return mass >= least ? mass : 0;
  }
  // The sum of a vector whose first element is `id`: of most rows most vectors are left out.
  template <class Elements>
  __device__ __forceinline__ uint64_t sum(const Elements& elements, int id) const {
    constexpr int kLength = static_cast<int>(sizeof elements.x / sizeof(float));
    bool any = false;
#pragma unroll
    for (int j = 0; j < kLength; ++j) any = any || elements.x[j] >= low;
    uint64_t total = 0;
    if (any) {
#pragma unroll
      for (int j = 0; j < kLength; ++j) total += of(elements.x[j], id + j);
    }
    return total;
  }
};

// Sum of this warp's kept masses, in all lanes; by stretches in s.stretch_mass. `tail`: as RowPart::sweep_tail_first.
template <class Part>
__device__ __forceinline__ uint64_t warp_masses(const Part& part, RowBoard& s, const KeptMasses& kept, bool tail) {
  clear_stretches(s);
  uint64_t sum = 0;
  const auto done = [&](int stretch) { end_stretch(s, stretch, sum); };
  if (kept.everything() && is_ordinary(kept.softmax) && kept.softmax.inv_temperature == 1.0f) {
    const VectorMasses vectors(kept, UnitSoftmax{kept.softmax.row_max});
    part.sweep_tail_first(tail, [&](int, const auto& elements, bool) { sum += vectors.all(elements); }, done);
    return end_stretches(s, sum);
  }
  with_masses(kept.softmax, [&](auto masses) {
    const VectorMasses vectors(kept, masses);
    if (kept.everything()) {
      part.sweep_tail_first(tail, [&](int, const auto& elements, bool) { sum += vectors.all(elements); }, done);
    } else {
      part.sweep_tail_first(tail, [&](int v, const auto& elements, bool) { sum += vectors.sum(elements, part.id(v)); },
                            done);
    }
  });
  return end_stretches(s, sum);
}

// The kept mass of a lane's vectors of a stretch: from `first` on every 32nd before `end`.
template <class Part, class Masses>
__device__ __forceinline__ uint64_t stretch_mass(const Part& part, const VectorMasses<Masses>& masses, int first,
                                                 int end) {
  constexpr int kAhead = kBatch<Part>;
  uint64_t total = 0;
#pragma unroll 1
  for (int v = first; v < end; v += kAhead * 32) {
    const VectorBatch<Part, kAhead> batch([&](int k) { return part[min(v + k * 32, end - 1)]; });
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (v + k * 32 < end) total += masses.sum(batch.of[k], part.id(v + k * 32));
    }
  }
  return total;
}

// The token among the vectors [first, last) of a block at which the kept masses, summed in the order of ids, exceed
// `rest`; -1 in all threads but one. Each warp sums a stretch, until there are few vectors for every thread.
template <class Part, class Masses>
__device__ __forceinline__ int drawn_token(const Part& part, RowBoard& s, const VectorMasses<Masses>& masses, int first,
                                           int last, uint64_t rest) {
  constexpr int kFew = kBatch<Part>;
  const int warp = static_cast<int>(warp_id()), lane = static_cast<int>(lane_id());
  while (last - first > kFew * kRowThreads) {
    const int each = (last - first + kRowWarps - 1) / kRowWarps;
    const int from = first + warp * each, to = min(from + each, last);
    const uint64_t sum = warp_sum(stretch_mass(part, masses, from + lane, to));
    uint64_t total;
    const uint64_t before = block_warps_below(sum, s.warp_part, &total);
    if (lane == 0 && before <= rest && rest - before < sum) {
      s.drawn_first = from;
      s.drawn_last = to;
      s.drawn_point = rest - before;
    }
    __syncthreads();
    first = s.drawn_first;
    last = s.drawn_last;
    rest = s.drawn_point;
  }
  const int from = first + static_cast<int>(threadIdx.x) * kFew;
  const VectorBatch<Part, kFew> batch([&](int k) { return part[min(from + k, last - 1)]; });
  uint64_t sum = 0;
#pragma unroll
  for (int k = 0; k < kFew; ++k) {
    if (from + k < last) sum += masses.sum(batch.of[k], part.id(from + k));
  }
  const uint64_t up_to = warp_inclusive(sum);
  uint64_t total;
  const uint64_t below = block_warps_below(__shfl_sync(kAllLanes, up_to, 31), s.warp_part, &total) + up_to - sum;
  if (below > rest || rest - below >= sum) return -1;
  rest -= below;
#pragma unroll
  for (int k = 0; k < kFew; ++k) {
#pragma unroll
    for (int j = 0; j < Part::kLength; ++j) {
      const uint64_t mass = masses.of(batch.of[k].x[j], part.id(from + k) + j);
      if (rest < mass) return part.id(from + k) + j;
      rest -= mass;
    }
  }
  return -1;
}

// Adds the kept masses of a warp's list to its stretches: each warp of the block to one of these.
template <class Part, class Masses>
__device__ __forceinline__ void add_listed(const Part& part, RowBoard& s, const VectorMasses<Masses>& masses,
                                           int warp) {
  static_assert(kStretches < kRowWarps, "and to the rest");
  const int at = static_cast<int>(warp_id());
  if (at <= kStretches) {
    const float* values = part.list_values() + s.list_begin[warp];
    const uint16_t* places = part.list_places() + s.list_begin[warp];
    const int begin = part.begin(warp), listed = static_cast<int>(s.listed[warp]);
    const int from = (part.stretch(warp, at) - begin) * Part::kLength;
    const uint32_t length = static_cast<uint32_t>((part.stretch(warp, at + 1) - begin) * Part::kLength - from);
    uint64_t sum = 0;
#pragma unroll 4
    for (int i = static_cast<int>(lane_id()); i < listed; i += 32) {
      const int place = places[i];
      const bool inside = static_cast<uint32_t>(place - from) < length;
      sum += masses.of(inside ? values[i] : -INFINITY, part.id(begin) + place);
    }
    sum = warp_sum(sum);
    if (lane_id() == 0) s.stretch_mass[warp][at] += sum;
  }
  __syncthreads();
}

// Draws the row's token from the warps' sums `own` of kept masses, and their sums before and in all; -1 in all threads
// but one. All blocks of the row call it, with s.stretch_mass; `listed`: that is without what the lists keep.
template <class Part>
__device__ __forceinline__ int draw_token(const Part& part, RowBoard& s, KeptMasses kept, Published sums, uint64_t own,
                                          uint64_t random, bool listed) {
  const uint64_t point = draw_point(random, sums.total);
  if (lane_id() == 0 && point >= sums.before && point - sums.before < own) {
    s.drawn_warp = static_cast<int>(warp_id());
    s.drawn_point = point - sums.before;
    s.drawn_cut = kept.cut;
  }
  __syncthreads();
  const int warp = s.drawn_warp;
  if (warp < 0) return -1;
  kept.cut = s.drawn_cut;  // of equal elements a warp knows its own
  return with_masses(kept.softmax, [&](auto masses) {
    const VectorMasses vectors(kept, masses);
    uint64_t rest = s.drawn_point;
    int first = part.begin(warp), last = part.end(warp);
    if (part.stretched(warp)) {
      const uint64_t* by_stretch = s.stretch_mass[warp];
      if (listed) add_listed(part, s, vectors, warp);
      int at = 0;
      for (; at < kStretches && rest >= by_stretch[at]; ++at) rest -= by_stretch[at];
      first = part.stretch(warp, at);
      last = part.stretch(warp, at + 1);
    }
    return drawn_token(part, s, vectors, first, last, rest);
  });
}

}  // namespace specdec::cuda
