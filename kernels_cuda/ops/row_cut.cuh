// The cut of a softmax row at a count (top_k) or a mass (top_p) in few passes. A sample of the row says where the cut
// should be; one pass sums exactly what lies above that interval and lists what lies in it; the search ends in the
// lists. If the guess was wrong, the search begins again with the whole row: the result never depends on the guess.
#pragma once

#include "row_search.cuh"

namespace specdec::cuda {

constexpr float kLeastT = -42.0f;  // below it masses are 0

// A quick pass over a sample (`fresh`: it is where the load has put it): counts by buckets of t. Each thread's two
// largest elements are counted exactly if they reach the pivot, all below these as far as they are in the sample.
// Divides the room for lists among the warps.
template <class Part>
__device__ __forceinline__ void guess_interval(const Part& part, RowBoard& s, Goal goal, float fraction, bool fresh) {
  constexpr int kHead = 90;
  const int tid = static_cast<int>(threadIdx.x), lane = static_cast<int>(lane_id());
  const int32_t pivot = pivot_key(s, kHead);
  float least = s.block_low[0];
  for (int r = 1; r < Cluster::size(); ++r) least = fminf(least, s.block_low[r]);
  const float row_max = s.softmax.row_max, to_t = s.softmax.inv_temperature * kLog2E;
  const float deepest = isfinite(least) ? fmaxf(fminf((least - row_max) * to_t, -0x1p-60f), kLeastT) : kLeastT;
  const float scale = (kSampledCells - 1) / deepest, slope = to_t / deepest;  // both negative
  // Roughly t * scale, at most the last.
  const auto bucket = [&](float x) {
    return __saturatef((x - row_max) * slope) * static_cast<float>(kSampledCells - 1);
  };

  constexpr uint32_t kSampled = 1u << 13;  // what a sampled element adds to its cell; an exact one adds 1
  static_assert(2 * kMostCluster * kRowThreads < kSampled, "the exact ones of all blocks");
  uint32_t* cells = s.cells[0].sampled;
#pragma unroll
  for (int i = 0; i < kCellsEach; ++i) cells[i * kRowThreads + tid] = 0;
  if (tid == 0) {
    s.guess_first = 0;
    s.guess_last = kSampledCells - 1;
    s.target = 0.0f;
    s.margin = 0.0f;
  }
  __syncthreads();
  constexpr int kStride = Part::kRounds;  // one of so many vectors is in the sample
  float bound = key_value(pivot);
  {
    const float first = key_value(s.thread_key[tid]), second = s.thread_second[tid];
    if (first >= bound) atomicAdd(&cells[static_cast<int>(bucket(first))], 1u);
    if (second >= bound) {
      atomicAdd(&cells[static_cast<int>(bucket(second))], 1u);
      bound = second;
    }
  }
  // f(element, whether it is one), of every `skip`-th vector of the sample.
  const auto each_sampled = [&](int skip, auto f) SPECDEC_INLINED {
    const int warp = static_cast<int>(warp_id()), count = part.stripes(warp), stop = part.end(warp);
    constexpr int kAhead = kBatch<Part>;
#pragma unroll 1
    for (int at = 0; at < count; at += kAhead * skip) {
      const VectorBatch<Part, kAhead> batch([&](int k) { return part.sampled(min(at + k * skip, count - 1), fresh); });
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const bool real = at + k * skip < count && part.sampled_vector(at + k * skip) < stop;
#pragma unroll
        for (float x : batch.of[k].x) f(x, real);
      }
    }
  };
  const int spare = kSampledCells + lane;  // nobody reads it
  each_sampled(1, [&](float x, bool real) {
    const int cell = real && x < bound ? static_cast<int>(bucket(x)) : spare;  // in place of a branch
    atomicAdd(&cells[cell], kSampled);
  });
  Cluster::sync();

  // A bucket's mass is taken to be that of its middle, and its variance that of the sample and of where in the bucket
  // elements lie. A thread has kCellsEach of them, next to each other.
  const int blocks = Cluster::size();
  uint32_t packed[kCellsEach] = {};
#pragma unroll
  for (int r = 0; r < kMostCluster; ++r) {
#pragma unroll
    for (int i = 0; i < kCellsEach; ++i) {
      packed[i] += r < blocks ? Cluster::of(&s.cells[0], r)->sampled[tid * kCellsEach + i] : 0u;
    }
  }
  float upto[kCellsEach], noise_upto[kCellsEach];  // first this thread's alone
  const float spread = goal == Goal::kCount ? 0.0f : 0.2f / scale;  // of a mass in its bucket, of one
#pragma unroll
  for (int i = 0; i < kCellsEach; ++i) {
    const int cell = tid * kCellsEach + i;
    const float sampled = static_cast<float>(packed[i] / kSampled * kStride);
    const float count = sampled + static_cast<float>(packed[i] % kSampled);
    const float weight = goal == Goal::kCount       ? 1.0f
                         : cell < kSampledCells - 1 ? exp2f((static_cast<float>(cell) + 0.5f) / scale)
                                                    : 0.0f;
    const float noise = (static_cast<float>(kStride - 1) * sampled + spread * spread * count) * weight * weight;
    upto[i] = (i > 0 ? upto[i - 1] : 0.0f) + count * weight;
    noise_upto[i] = (i > 0 ? noise_upto[i - 1] : 0.0f) + noise;
  }
  const float own = upto[kCellsEach - 1], own_noise = noise_upto[kCellsEach - 1];
  const float in_warp = warp_inclusive(own), noise_in_warp = warp_inclusive(own_noise);
  if (lane == 31) {
    s.scan_mass[warp_id()] = in_warp;
    s.scan_variance[warp_id()] = noise_in_warp;
  }
  __syncthreads();
  float base = 0.0f, total = 0.0f, noise_base = 0.0f, noise_total = 0.0f;
  for (int w = 0; w < kRowWarps; ++w) {
    if (w == static_cast<int>(warp_id())) {
      base = total;
      noise_base = noise_total;
    }
    total += s.scan_mass[w];
    noise_total += s.scan_variance[w];
  }
  float before = __shfl_up_sync(kAllLanes, in_warp, 1);  // what its neighbour takes for its end, to the bit
  before = lane == 0 ? base : base + before;
#pragma unroll
  for (int i = 0; i < kCellsEach - 1; ++i) upto[i] += before;
  upto[kCellsEach - 1] = base + in_warp;
#pragma unroll
  for (int i = 0; i < kCellsEach; ++i) noise_upto[i] += noise_base + noise_in_warp - own_noise;
  // The bucket in which the sum reaches a mass: f(its number, which of the thread's it is).
  const auto if_reached = [&](float wanted, auto f) {
#pragma unroll
    for (int i = 0; i < kCellsEach; ++i) {
      if ((i > 0 ? upto[i - 1] : before) < wanted && wanted <= upto[i]) f(tid * kCellsEach + i, i);
    }
  };
  const float target = fraction * total;
  if_reached(target, [&](int, int i) {
    constexpr float kSigmas = 3.5f;  // many rows are cut at once, and one that is guessed wrong holds them all up
    const float outside = 1.0f - fraction, coarseness = -0.7f / scale;
    const float variance = outside * outside * noise_upto[i] + fraction * fraction * (noise_total - noise_upto[i]);
    s.target = target;
    s.margin = kSigmas * sqrtf(fmaxf(variance, 0.0f)) + (coarseness * fraction * outside + 2e-4f) * total;
  });
  __syncthreads();
  if_reached(s.target - s.margin, [&](int cell, int) { s.guess_first = cell; });
  if_reached(s.target + s.margin, [&](int cell, int) { s.guess_last = cell; });
  __syncthreads();
  const int first = s.guess_first, last = s.guess_last;

  // Half of the room in equal parts, half in proportion to what the warps' samples have in the interval.
  int expected = 0, looked_at = 0;
  each_sampled(2, [&](float x, bool real) {
    const float at = bucket(x);
    if (real && at >= static_cast<float>(first) && at < static_cast<float>(last + 1)) ++expected;
    if (real) ++looked_at;
  });
  expected = warp_sum(expected);
  looked_at = warp_sum(looked_at);
  if (lane == 0) s.scan_mass[warp_id()] = static_cast<float>(expected) / static_cast<float>(max(looked_at, 1));
  __syncthreads();
  if (tid <= kRowWarps) {
    float all = 1e-6f, below = 0.0f;
    for (int w = 0; w < kRowWarps; ++w) {
      if (w < tid) below += s.scan_mass[w];
      all += s.scan_mass[w];
    }
    const float share = 0.5f * below / all + 0.5f * static_cast<float>(tid) / kRowWarps;
    s.list_begin[tid] = static_cast<int>(static_cast<float>(part.list_room()) * share);
  }
  constexpr float kSlack = 0x1p-6f;  // of a bucket, for what is rounded
  if (tid == 0) {
    s.interval.high = first == 0 ? 0.0f : (static_cast<float>(first) - kSlack) / scale;
    s.interval.low =
        last == kSampledCells - 1 ? kLeastT : fmaxf((static_cast<float>(last + 1) + kSlack) / scale, kLeastT);
  }
  __syncthreads();
}

// What a pass over the row finds, in sums over all of it; the mass above the interval is s.published[1].
struct Classified {
  uint64_t total;
  uint32_t above_count, weighty;  // elements above the interval; with t > kLeastT
  bool listed;                    // the lists of all warps hold all in the interval
};

// With `kCounts` the total and the counts as well. Stripes whose largest lies below all that is asked for are left out.
template <bool kCounts, class Part>
__device__ __forceinline__ Classified classify(const Part& part, RowBoard& s) {
  const OrdinarySoftmax masses{s.softmax};
  const float high = s.interval.high * kDepth, low = s.interval.low * kDepth;  // as depths, high <= low
  const float weighty = kLeastT * kDepth;
  const unsigned warp = ptx::anew(warp_id());
  const int list = s.list_begin[warp], room = s.list_begin[warp + 1] - list;
  float* values = part.list_values() + list;
  uint16_t* places = part.list_places() + list;
  if (lane_id() == 0) s.listed[warp] = 0;
  clear_stripes(s);
  const int first = part.begin(static_cast<int>(warp_id()));
  uint64_t total = 0, above = 0, all_above = 0;
  uint32_t counts = 0;  // elements above, and from bit 16 on those that may weigh something
  const uint32_t wanted = stripes_with(part, s, [&](float top) {
    const float depth = masses.depth(top);
    return depth <= low || (kCounts && depth < weighty);
  });
  part.sweep(wanted, [&](int v, const auto& elements, bool) {
    bool inside[Part::kLength];
    uint64_t vector_above = 0;
#pragma unroll
    for (int j = 0; j < Part::kLength; ++j) {
      const float depth = masses.depth(elements.x[j]);
      const uint64_t mass = exp2_mass_at(depth);
      const bool is_above = depth < high;
      vector_above += is_above ? mass : 0;
      if (kCounts) total += mass;
      if (kCounts && is_above) ++counts;
      if (kCounts && depth < weighty) counts += 1u << 16;
      inside[j] = !is_above && depth <= low;
    }
    above += vector_above;
    int marked = 0, at[Part::kLength];
#pragma unroll
    for (int j = 0; j < Part::kLength; ++j) {
      at[j] = marked;
      marked += inside[j] ? 1 : 0;
    }
    if (marked == 0) return;
    const int first_at = static_cast<int>(atomicAdd(&s.listed[ptx::anew(warp_id())], static_cast<uint32_t>(marked)));
    if (first_at + Part::kLength > room) return;
    const int place = (v - first) * Part::kLength;
#pragma unroll
    for (int j = 0; j < Part::kLength; ++j) {
      if (!inside[j]) continue;
      values[first_at + at[j]] = elements.x[j];
      places[first_at + at[j]] = static_cast<uint16_t>(place + j);
    }
  }, [&](int at) { all_above += end_stripe(s, at, above); });
  if (kCounts) publish(s.published[0], warp_sum(total));
  publish(s.published[1], all_above);
  __syncwarp();
  const int listed = static_cast<int>(s.listed[ptx::anew(warp_id())]);
  const uint64_t overflow = listed + Part::kLength > room ? 1 : 0;
  publish(s.published[2],
          overflow << 40 | static_cast<uint64_t>(warp_sum(counts >> 16)) << 20 | warp_sum(counts & 0xFFFFu));
  Cluster::sync();
  const uint64_t all_counts = gather(s.published[2]).total;
  return {kCounts ? gather(s.published[0]).total : 0, static_cast<uint32_t>(all_counts & 0xFFFFF),
          static_cast<uint32_t>(all_counts >> 20 & 0xFFFFF), all_counts >> 40 == 0};
}

// At a temperature of infinity: all whose difference from the largest is finite weigh the same.
template <class Part>
__device__ __forceinline__ Classified count_equal(const Part& part, RowBoard& s) {
  int count = 0;
  each_element(part, ~0u, [&](float x, int) { count += sub_rn(x, s.softmax.row_max) > -INFINITY ? 1 : 0; });
  publish(s.published[0], static_cast<uint64_t>(warp_sum(count)));
  Cluster::sync();
  const uint64_t all = gather(s.published[0]).total;
  return {all * kMassOne, 0, static_cast<uint32_t>(all), false};
}

// f(value, id) for this lane's share of its warp's list.
template <class Part, class F>
__device__ __forceinline__ void each_listed(const Part& part, const RowBoard& s, F f) {
  const unsigned warp = ptx::anew(warp_id());
  const int listed = static_cast<int>(s.listed[warp]);
  const float* values = part.list_values() + s.list_begin[warp];
  const uint16_t* places = part.list_places() + s.list_begin[warp];
  __syncwarp();
#pragma unroll 1
  for (int i = static_cast<int>(lane_id()); i < listed; i += 32) f(values[i], part.id_at(places[i]));
}

// The keys of an interval, roughly, as a grid.
__device__ __forceinline__ KeyGrid interval_grid(const Softmax& softmax, Interval in, KeyRange range) {
  const float back = softmax.inv_temperature * kLog2E;
  const float high = softmax.row_max + in.high / back, low = softmax.row_max + in.low / back;
  return isfinite(high) && isfinite(low) ? KeyRange{order_key(low), order_key(high)}.grid() : range.grid();
}

// A cut, and if known the sum of this warp's masses that it keeps; then s.stripe_mass is that without its list.
// s.row_mass (with Goal::kCount) and s.kept.mass are the whole row's.
struct SoftmaxCut {
  Cut cut;
  bool own_known;
  uint64_t own;
};

// Cuts an ordinary softmax row at s.params.top_k elements, or where their masses reach `need`. `fraction`: about where;
// `fresh`: it is the first cut of the row.
template <class L, class Part>
__device__ __forceinline__ SoftmaxCut cut_ordinary(const Part& part, RowBoard& s, Goal goal, uint64_t need,
                                                   float fraction, bool fresh) {
  enum { kLists, kInterval, kRow } where = kRow;  // where the cut is looked for
  if (threadIdx.x == 0) s.need = need;  // not in registers through all of this
  __syncthreads();
  if (goal == Goal::kCount || s.softmax.inv_temperature > 0.0f) {
    Classified c;
    if (s.softmax.inv_temperature > 0.0f) {
      guess_interval(part, s, goal, fraction, fresh);
      c = goal == Goal::kCount ? classify<true>(part, s) : classify<false>(part, s);
      const Weight above = {c.above_count, gather(s.published[1]).total};
      if (above.of(goal) < s.need) where = c.listed ? kLists : kInterval;
      if (threadIdx.x == 0) s.search.above = above;
    } else {
      c = count_equal(part, s);
    }
    if (goal == Goal::kCount && threadIdx.x == 0) s.row_mass = c.total;
    if (goal == Goal::kCount && s.need > c.weighty) {
      // What has no mass is never drawn: a cut among it keeps as much as none.
      if (threadIdx.x == 0) s.kept = {c.weighty, c.total};
      __syncthreads();
      return {keep_all(), false, 0};
    }
  }
  for (;;) {
    if (threadIdx.x == 0) {
      const KeyRange all = {-kKeyInf, order_key(s.softmax.row_max)};
      const Weight above = where == kRow ? Weight{0, 0} : s.search.above;
      const KeyGrid grid = where == kRow ? all.grid() : interval_grid(s.softmax, s.interval, all);
      s.search = {goal, s.need, all, grid, above, {0, 0}, true};
    }
    __syncthreads();
    const auto each = [&](auto f) SPECDEC_INLINED {
      if (where == kLists) return each_listed(part, s, f);
      const OrdinarySoftmax masses{s.softmax};
      const float high = s.interval.high * kDepth, low = s.interval.low * kDepth;
      const float least = key_value(s.search.range.low);
      each_element(part, stripes_with(part, s, [&](float top) { return top >= least; }), [&](float x, int id) {
        const float depth = masses.depth(x);
        if (where == kRow || (depth >= high && depth <= low)) f(x, id);
      });
    };
    const RowCut found = narrow<L>(part, s, each, FiniteSoftmax{s.softmax}, where == kLists);
    if (found.reached) {
      const uint64_t own = found.own + s.published[1][Cluster::rank() * kRowWarps + static_cast<int>(warp_id())];
      __syncthreads();
      return {found.cut, where == kLists, own};
    }
    if (where == kRow) return {keep_all(), false, 0};  // the whole row falls short
    where = kRow;
  }
}

// The same for a row with infinities: only its largest elements weigh anything, all the same.
template <class L, class Part>
__device__ __forceinline__ SoftmaxCut cut_infinite(const Part& part, RowBoard& s, Goal goal, uint64_t need) {
  const int32_t top = order_key(s.softmax.row_max);
  const int own_ties = count_ties(part, top);
  publish(s.published[1], static_cast<uint64_t>(warp_sum(own_ties)));
  Cluster::sync();
  const uint64_t all = gather(s.published[1]).total;
  const uint64_t ties = goal == Goal::kCount ? min(need, all) : (need + kMassOne - 1) / kMassOne;
  if (threadIdx.x == 0) {
    s.row_mass = all * kMassOne;
    s.kept = {ties, ties * kMassOne};
  }
  const Cut cut = cut_ties(part, s, top, ties, own_ties);
  __syncthreads();
  return {cut, false, 0};
}

template <class L, class Part>
__device__ __forceinline__ SoftmaxCut cut_softmax(const Part& part, RowBoard& s, Goal goal, uint64_t need,
                                                  float fraction, bool fresh) {
  return is_ordinary(s.softmax) ? cut_ordinary<L>(part, s, goal, need, fraction, fresh)
                                : cut_infinite<L>(part, s, goal, need);
}

}  // namespace specdec::cuda
