// The cut of a softmax row at a count (top_k) or a mass (top_p) in few passes. A sample of the row says where the cut
// should be; one pass sums exactly what lies above that interval and lists what lies in it; the search ends in the
// lists. If the guess was wrong, the search begins again with the whole row: the result never depends on the guess.
#pragma once

#include "row_search.cuh"

namespace specdec::cuda {

// Exponents t, high >= low: where a cut is presumed.
struct Interval {
  float high, low;
};

constexpr float kLeastT = -42.0f;  // below it masses are 0

// A quick pass over a sample: counts by buckets of t. Of the elements that reach the pivot the threads' largest are
// counted, which are nearly all, of the others those of every `stride`-th vector.
template <class Part>
__device__ __forceinline__ Interval guess_interval(const Part& part, RowBoard& s, Goal goal, float fraction) {
  constexpr int kHead = 64, kStride = 8;
  const int tid = static_cast<int>(threadIdx.x);
  const int32_t pivot = pivot_key(s, kHead);
  const float pivot_value = key_value(pivot);
  float least = s.block_low[0];
  for (int r = 1; r < Cluster::size(); ++r) least = fminf(least, s.block_low[r]);
  const float row_max = s.softmax.row_max, to_t = s.softmax.inv_temperature * kLog2E;
  const float deepest = isfinite(least) ? fmaxf(fminf((least - row_max) * to_t, -0x1p-60f), kLeastT) : kLeastT;
  const float scale = (kSampledCells - 1) / deepest, slope = to_t / deepest;  // both negative
  // Roughly t * scale, at most the last.
  const auto bucket = [&](float x) {
    return static_cast<int>(__saturatef((x - row_max) * slope) * static_cast<float>(kSampledCells - 1));
  };

  uint32_t* cells = s.cells[0].sampled;
  cells[tid] = 0;
  if (tid == 0) {
    s.guess_first = 0;
    s.guess_last = kSampledCells - 1;
    s.target = 0.0f;
    s.margin = 0.0f;
    s.guess_stride = part.rounds() > kStride / 2 ? kStride : 1;
  }
  __syncthreads();
  const int stride = s.guess_stride;  // from memory: else what follows from it takes registers all the time
  if (s.thread_key[tid] >= pivot) atomicAdd(&cells[bucket(key_value(s.thread_key[tid]))], 1u);
  const int warp = static_cast<int>(warp_id()), stop = part.end(warp);
  const int spare = kSampledCells + static_cast<int>(lane_id());  // nobody reads it
  constexpr int kAhead = 16 / Part::kLength;
#pragma unroll 1
  for (int v = part.begin(warp) + static_cast<int>(lane_id()) + warp % stride * 32; v < stop;
       v += kAhead * stride * 32) {
    const VectorBatch<Part, kAhead> batch(part, v, stride * 32, stop);
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const float bound = v + k * stride * 32 < stop ? pivot_value : -INFINITY;
#pragma unroll
      for (int j = 0; j < Part::kLength; ++j) {
        const float x = batch.of[k].x[j];
        const int cell = x < bound ? bucket(x) : spare;  // in place of a branch
        atomicAdd(&cells[cell], static_cast<uint32_t>(stride));
      }
    }
  }
  Cluster::sync();

  // A thread is a bucket. Its mass is taken to be that of its middle, and its variance that of the sample.
  const int blocks = Cluster::size();
  uint32_t count = 0;
#pragma unroll
  for (int r = 0; r < kMostCluster; ++r) count += r < blocks ? Cluster::of(&s.cells[0], r)->sampled[tid] : 0u;
  const float weight = goal == Goal::kCount        ? 1.0f
                       : tid < kSampledCells - 1 ? exp2f((static_cast<float>(tid) + 0.5f) / scale)
                                                 : 0.0f;
  const float mass = static_cast<float>(count) * weight;
  const float noise =
      tid > bucket(pivot_value) ? static_cast<float>(stride - 1) * mass * weight : 0.0f;
  float upto = warp_inclusive(mass), noise_upto = warp_inclusive(noise);
  if (lane_id() == 31) {
    s.scan_mass[warp_id()] = upto;
    s.scan_variance[warp_id()] = noise_upto;
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
  float before = __shfl_up_sync(kAllLanes, upto, 1);
  before = lane_id() == 0 ? base : base + before;
  upto += base;
  noise_upto += noise_base;
  const float target = fraction * total;
  if (before < target && target <= upto) {
    const float outside = 1.0f - fraction, coarseness = -0.7f / scale;
    const float variance = outside * outside * noise_upto + fraction * fraction * (noise_total - noise_upto);
    s.target = target;
    s.margin = 3.0f * sqrtf(fmaxf(variance, 0.0f)) + (coarseness * fraction * outside + 2e-4f) * total;
  }
  __syncthreads();
  const float low = s.target - s.margin, high = s.target + s.margin;
  if (before < low && low <= upto) s.guess_first = tid;
  if (before < high && high <= upto) s.guess_last = tid;
  __syncthreads();
  const int first = s.guess_first, last = s.guess_last;
  constexpr float kSlack = 0x1p-6f;  // of a bucket, for what is rounded
  return {first == 0 ? 0.0f : (static_cast<float>(first) - kSlack) / scale,
          last == kSampledCells - 1 ? kLeastT : fmaxf((static_cast<float>(last + 1) + kSlack) / scale, kLeastT)};
}

// What a pass over the row finds, in sums over all of it; the mass above the interval is s.published[1].
struct Classified {
  uint64_t total;
  uint32_t above_count, weighty;  // elements above the interval; with t > kLeastT; if counted
  bool listed;                    // the lists of all warps hold all in the interval
  int own_listed;                 // this warp's
};

// Whether a part is read again from shared memory.
template <class Part>
constexpr bool kInShared = false;
template <class L>
constexpr bool kInShared<RowPart<L, true>> = true;

// Lists this warp's marked elements: `marks` has a byte for each of its vectors, a bit an element. Returns how many.
template <class Part>
__device__ __forceinline__ int list_marked(const Part& part, const uint8_t* marks, float* values, uint16_t* places,
                                           int room) {
  const int warp = static_cast<int>(warp_id()), first = part.begin(warp), vectors = part.end(warp) - first;
  const int lane = static_cast<int>(lane_id());
  const auto word = [&](int i) {
    const uint32_t bits = reinterpret_cast<const uint32_t*>(marks)[i];
    return (i + 1) * 4 <= vectors ? bits : bits & ((1u << vectors % 4 * 8) - 1);
  };
  __syncwarp();
  int count = 0;
  for (int i = lane; i * 4 < vectors; i += 32) count += __popc(word(i));
  const int upto = warp_inclusive(count), listed = __shfl_sync(kAllLanes, upto, 31);
  if (listed > room) return listed;
  int at = upto - count;
  for (int i = lane; i * 4 < vectors; i += 32) {
    for (uint32_t bits = word(i); bits != 0; bits &= bits - 1) {
      const int bit = __ffs(static_cast<int>(bits)) - 1;
      places[at++] = static_cast<uint16_t>((i * 4 + bit / 8) * Part::kLength + bit % 8);
    }
  }
  __syncwarp();  // the marks are where the values go
  for (int i = lane; i < listed; i += 32) {
    const int place = places[i];
    const auto elements = part[first + place / Part::kLength];
    float x = elements.x[0];
#pragma unroll
    for (int j = 1; j < Part::kLength; ++j) x = place % Part::kLength == j ? elements.x[j] : x;
    values[i] = x;
  }
  return listed;
}

template <bool kCounts, class Part>
__device__ __forceinline__ Classified classify(const Part& part, RowBoard& s, Interval in) {
  const OrdinarySoftmax masses{s.softmax};
  const float high = in.high * kDepth, low = in.low * kDepth;  // as depths, high <= low
  float* values = part.list_values();
  uint16_t* places = part.list_places();
  const int room = part.list_room();
  const int first = part.begin(static_cast<int>(warp_id()));
  uint8_t* marks = reinterpret_cast<uint8_t*>(values);
  const bool has_room = part.end(static_cast<int>(warp_id())) - first <= room * 4;  // for the marks
  uint64_t total = 0, above = 0;
  uint32_t counts = 0;  // elements above, and from bit 16 on those that may weigh something
  int listed = 0;
  part.template sweep<sizeof(typename Part::Bits) == 4 ? 2 : 1>([&](int v, const auto& elements, bool real) {
    const int place = part.place(v);
    uint32_t marked = 0;
#pragma unroll
    for (int j = 0; j < Part::kLength; ++j) {
      const float depth = masses.depth(elements.x[j]);
      const uint64_t mass = exp2_mass_at(depth);
      total += mass;
      const bool is_above = depth < high, inside = !is_above && depth <= low;
      above += is_above ? mass : 0;
      if (kCounts) {
        counts += is_above ? 1 : 0;
        counts += depth < kLeastT * kDepth ? 1u << 16 : 0;
      }
      if constexpr (kInShared<Part>) {
        marked |= inside ? 1u << j : 0;
      } else {
        const uint32_t lanes = __ballot_sync(kAllLanes, inside);
        const int at = listed + __popc(lanes & ptx::lanes_below());
        if (inside && at < room) {
          values[at] = elements.x[j];
          places[at] = static_cast<uint16_t>(place + j);
        }
        listed += __popc(lanes);
      }
    }
    if (kInShared<Part> && real && has_room) marks[v - first] = static_cast<uint8_t>(marked);
  });
  if constexpr (kInShared<Part>) listed = has_room ? list_marked(part, marks, values, places, room) : room + 1;
  publish(s.published[0], warp_sum(total));
  publish(s.published[1], warp_sum(above));
  const uint64_t overflow = listed > room ? 1 : 0;
  publish(s.published[2],
          overflow << 40 | static_cast<uint64_t>(warp_sum(counts >> 16)) << 20 | warp_sum(counts & 0xFFFFu));
  Cluster::sync();
  const uint64_t all_counts = gather(s.published[2]).total;
  return {gather(s.published[0]).total, static_cast<uint32_t>(all_counts & 0xFFFFF),
          static_cast<uint32_t>(all_counts >> 20 & 0xFFFFF), all_counts >> 40 == 0, listed};
}

// At a temperature of infinity: all but -inf weigh the same.
template <class Part>
__device__ __forceinline__ Classified count_equal(const Part& part, RowBoard& s) {
  int count = 0;
  each_element(part, [&](float x, int) { count += x > -INFINITY ? 1 : 0; });
  publish(s.published[0], static_cast<uint64_t>(warp_sum(count)));
  Cluster::sync();
  const uint64_t all = gather(s.published[0]).total;
  return {all * kMassOne, 0, static_cast<uint32_t>(all), false, 0};
}

// f(value, id) for this lane's share of its warp's list.
template <class Part, class F>
__device__ __forceinline__ void each_listed(const Part& part, int listed, F f) {
  const float* values = part.list_values();
  const uint16_t* places = part.list_places();
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

// A cut, and if known the sum of this warp's masses that it keeps. s.row_mass and s.kept.mass are the whole row's.
struct SoftmaxCut {
  Cut cut;
  bool own_known;
  uint64_t own;
};

// Cuts an ordinary softmax row at s.params.top_k elements, or at s.params.top_p of `total`, or of all masses where that
// is 0. `fraction`: about where.
template <class L, class Part>
__device__ __forceinline__ SoftmaxCut cut_ordinary(const Part& part, RowBoard& s, Goal goal, uint64_t total,
                                                   float fraction) {
  const KeyRange all = {-kKeyInf, order_key(s.softmax.row_max)};
  bool listed;
  int own_listed;
  {
    KeyGrid grid = all.grid();
    Classified c;
    if (s.softmax.inv_temperature > 0.0f) {
      const Interval in = guess_interval(part, s, goal, fraction);
      c = goal == Goal::kCount ? classify<true>(part, s, in) : classify<false>(part, s, in);
      grid = interval_grid(s.softmax, in, all);
    } else {
      c = count_equal(part, s);
    }
    listed = c.listed;
    own_listed = c.own_listed;
    if (threadIdx.x == 0) s.row_mass = c.total;
    const uint64_t top_k = static_cast<uint64_t>(s.params.top_k);
    if (goal == Goal::kCount && top_k > c.weighty) {
      // What has no mass is never drawn: a cut among it keeps as much as none.
      if (threadIdx.x == 0) s.kept = {c.weighty, c.total};
      __syncthreads();
      return {keep_all(), false, 0};
    }
    const uint64_t need =
        goal == Goal::kCount ? top_k : max(threshold(s.params.top_p, total > 0 ? total : c.total), uint64_t{1});
    const Weight above = {c.above_count, gather(s.published[1]).total};
    listed = listed && above.of(goal) < need;
    if (listed) {
      begin_search(s, {goal, need, all, grid, above, {0, 0}, true});
    } else {
      begin_search(s, {goal, need, all, all.grid(), {0, 0}, {0, 0}, true});
    }
  }
  for (;; listed = false) {
    const auto each = [&](auto f) {
      if (listed) {
        each_listed(part, own_listed, f);
      } else {
        each_element(part, f);
      }
    };
    const RowCut found = narrow<L>(part, s, each, s.softmax);
    if (found.reached) {
      uint64_t own = 0;
      if (listed) {
        each_listed(part, own_listed, [&](float x, int id) {
          if (found.cut.keeps(order_key(x), id)) own += OrdinarySoftmax{s.softmax}(x);
        });
        own = warp_sum(own) + s.published[1][Cluster::rank() * kRowWarps + static_cast<int>(warp_id())];
      }
      __syncthreads();
      return {found.cut, listed, own};
    }
    begin_search(s, {goal, s.search.need, all, all.grid(), {0, 0}, {0, 0}, true});
  }
}

// The same for a row with infinities: only its largest elements weigh anything, all the same.
template <class L, class Part>
__device__ __forceinline__ SoftmaxCut cut_infinite(const Part& part, RowBoard& s, Goal goal, uint64_t total) {
  const int32_t top = order_key(s.softmax.row_max);
  const int own_ties = count_ties(part, top);
  publish(s.published[1], static_cast<uint64_t>(warp_sum(own_ties)));
  Cluster::sync();
  const uint64_t all = gather(s.published[1]).total;
  const uint64_t need = max(threshold(s.params.top_p, total > 0 ? total : all * kMassOne), uint64_t{1});
  const uint64_t ties = goal == Goal::kCount ? min(static_cast<uint64_t>(s.params.top_k), all)
                                             : (need + kMassOne - 1) / kMassOne;
  if (threadIdx.x == 0) {
    s.row_mass = all * kMassOne;
    s.kept = {ties, ties * kMassOne};
  }
  const Cut cut = cut_ties(part, s, top, ties, own_ties);
  __syncthreads();
  return {cut, false, 0};
}

}  // namespace specdec::cuda
