// Masses of a row's elements: sums of chunks while loading, of kept elements in later passes, and draws.
#pragma once

#include "row_shared.cuh"

namespace specdec::cuda {

// Masses of a row or chunk that is ordinary (see below) and has 1/temperature > 0: no t is NaN, which saves operations.
// The same bits as Softmax.
struct OrdinarySoftmax {
  Softmax softmax;

  // Of exp2_mass_at; the larger, the less a logit weighs.
  __device__ __forceinline__ float depth(float logit) const {
    return __saturatef(mul_rn(mul_rn(sub_rn(logit, softmax.row_max), softmax.inv_temperature), kDepth * kLog2E));
  }
  __device__ __forceinline__ uint64_t operator()(float logit) const { return exp2_mass_at(depth(logit)); }
  // The mass as a float.
  __device__ __forceinline__ float whole(float logit) const { return truncf(exp2_scaled_at(depth(logit))); }
};

// The same at any temperature.
struct FiniteSoftmax {
  Softmax softmax;

  __device__ __forceinline__ uint64_t operator()(float logit) const {
    return sub_rn(logit, softmax.row_max) > -INFINITY ? OrdinarySoftmax{softmax}(logit) : 0;
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
  __device__ __forceinline__ float whole(float logit) const { return u64_to_f32(softmax(logit)); }
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

// The largest of a lane's vectors, or NaN.
template <class Part>
__device__ __forceinline__ float largest_of(const uint4 (&x)[Part::kRounds]) {
  using L = typename Part::Type;
  if constexpr (kInWord<L> == 1) {
    const Elements<L> first(x[0]);
    float most[4] = {first.x[0], first.x[1], first.x[2], first.x[3]};
#pragma unroll
    for (int k = 1; k < Part::kRounds; ++k) {
      const Elements<L> elements(x[k]);
#pragma unroll
      for (int j = 0; j < 4; ++j) most[j] = ptx::max_or_nan(most[j], elements.x[j]);
    }
    return ptx::max_or_nan(ptx::max_or_nan(most[0], most[1]), ptx::max_or_nan(most[2], most[3]));
  } else {
    uint32_t most = kLowest<L>;
#pragma unroll
    for (int k = 0; k < Part::kRounds; ++k) {
      const uint32_t words[4] = {x[k].x, x[k].y, x[k].z, x[k].w};
#pragma unroll
      for (uint32_t word : words) {
        most =
            std::is_same<L, BFloat16>::value ? ptx::max_or_nan_bf16x2(most, word) : ptx::max_or_nan_f16x2(most, word);
      }
    }
    return ptx::max_or_nan(L::widen(static_cast<uint16_t>(most)), L::widen(static_cast<uint16_t>(most >> 16)));
  }
}

struct CountsNothing {
  template <class Elements>
  __device__ void operator()(const Elements&) {}
  static constexpr __device__ bool wants(float) { return false; }
};
// At temperature 1: elements that are not below one of the row.
struct CountsNotBelow {
  float chosen;
  int count = 0;

  template <class Elements>
  __device__ __forceinline__ void operator()(const Elements& elements) {
#pragma unroll
    for (float x : elements.x) count += x >= chosen ? 1 : 0;
  }
  __device__ bool wants(float chunk_top) const { return chunk_top >= chosen; }
};

// Temperature classes with specialised code.
enum class Temperatures { kOne, kAll };

// Sums the chunks of a warp while RowPart::load goes through them: lane `at` has that of stripe `at`. `count` looks at
// what chunks have that it wants, by their largest.
template <class Part, Temperatures kAt, class Count = CountsNothing>
struct ChunkSums {
  using L = typename Part::Type;

  float inv_temperature;
  Count count = {};
  ChunkSum own = {-INFINITY, 0};

  struct Edge {
    float x[1];
  };
  __device__ __forceinline__ void operator()(typename Part::Chunk& chunk, float edge) {
    const int32_t key = order_key(ptx::max_or_nan(largest_of<Part>(chunk.x), edge));
    const float top = key_value(__reduce_max_sync(kAllLanes, key));
    uint64_t sum = 0;
    const auto pass = [&](auto mass, auto counted) SPECDEC_INLINED {
      if (edge > -INFINITY) {
        sum = mass(edge);
        if (counted.value) count(Edge{{edge}});
      }
#pragma unroll(Part::kOneEach ? Part::kRounds / 4 : Part::kRounds)
      for (int k = 0; k < Part::kRounds; ++k) {
        const Elements<L> elements(chunk.get(k));
#pragma unroll
        for (float element : elements.x) sum += mass(element);
        if (counted.value) count(elements);
        chunk.used(k);
      }
    };
    const bool one = kAt == Temperatures::kOne || inv_temperature == 1.0f;
    if (top < INFINITY && one) {
      if (count.wants(top)) {
        pass(UnitSoftmax{top}, std::true_type{});
      } else {
        pass(UnitSoftmax{top}, std::false_type{});
      }
    } else if (kAt != Temperatures::kOne && top < INFINITY && inv_temperature > 0.0f && isfinite(inv_temperature)) {
      pass(OrdinarySoftmax{{top, inv_temperature}}, std::false_type{});
    } else {
      // Masses are 2^40 or 0: at temperature inf where the difference is finite, else for the largest alone.
      const bool all = inv_temperature == 0.0f && top < INFINITY;
      const auto mass = [&](float element) {
        return (all ? sub_rn(element, top) > -INFINITY : element >= top) ? kMassOne : uint64_t{0};
      };
      pass(mass, std::true_type{});
    }
    // Two sums of 32 numbers that have 26 bits at most.
    constexpr int kLowBits = 25;
    const uint32_t low = __reduce_add_sync(kAllLanes, static_cast<uint32_t>(sum) & ((1u << kLowBits) - 1u));
    const uint32_t high = __reduce_add_sync(kAllLanes, static_cast<uint32_t>(sum >> kLowBits));
    if (static_cast<int>(lane_id()) == chunk.stripe) own = {top, (uint64_t{high} << kLowBits) + low};
  }
};

// Number of the stripe that is this lane's: `at` of its warp for lane `at`; -1: none.
template <class Part>
__device__ __forceinline__ int own_stripe(const Part& part) {
  const int warp = static_cast<int>(ptx::recomputed(warp_id())), lane = static_cast<int>(lane_id());
  return lane < part.stripes(warp) ? warp * part.stripes_each() + lane : -1;
}

// For the elements of a list to be added up by stripes, after a barrier.
__device__ __forceinline__ void clear_more(RowShared& s) {
  for (int g = static_cast<int>(threadIdx.x); g < kMaxRowStripes; g += kRowThreads) {
    s.stripes.more[0][g] = 0;
    s.stripes.more[1][g] = 0;
  }
}

// The row's number of a stripe of this block.
template <class Part>
__device__ __forceinline__ int in_row(const Part& part, int stripe) {
  return part.first_stripe() + stripe;
}

// Stores the sums of this warp's chunks in shared memory, to save registers.
template <class Part>
__device__ __forceinline__ void keep_chunks(const Part& part, RowShared& s, const ChunkSum& own) {
  const int g = own_stripe(part);
  if (g < 0) return;
  s.chunks.top[in_row(part, g)] = own.top;
  s.chunks.mass[in_row(part, g)] = own.mass;
}
// Of this lane; without any, a chunk of nothing.
template <class Part>
__device__ __forceinline__ ChunkSum own_chunk(const Part& part, const RowShared& s) {
  const int g = own_stripe(part);
  if (g < 0) return {-INFINITY, 0};
  return {s.chunks.top[in_row(part, g)], s.chunks.mass[in_row(part, g)]};
}

// Stores them, from every lane's `own`, in all blocks of the row, and has a Cluster::sync() at the end.
template <class Part>
__device__ __forceinline__ void share_chunks(const Part& part, RowShared& s, const ChunkSum& own) {
  const int warp = static_cast<int>(ptx::recomputed(warp_id())), lane = static_cast<int>(lane_id());
  const int blocks = part.blocks(), count = part.stripes(warp) * blocks;
  const int first = in_row(part, warp * part.stripes_each());
#pragma unroll 1
  for (int i = lane; i - lane < count; i += 32) {
    const int at = i >> __popc(static_cast<unsigned>(blocks - 1));  // a power of two
    const float top = __shfl_sync(kAllLanes, own.top, at);
    const uint64_t mass = __shfl_sync(kAllLanes, own.mass, at);
    if (i >= count) continue;
    RowShared* to = Cluster::of(&s, i & (blocks - 1));
    to->chunks.top[first + at] = top;
    to->chunks.mass[first + at] = mass;
  }
  Cluster::sync();
}
// The cluster's first meeting: the same, and the row's largest key.
template <class Part>
__device__ __forceinline__ int32_t meet_chunks(const Part& part, RowShared& s, const ChunkSum& own) {
  Cluster::wait();
  share_chunks(part, s, own);
  int32_t key = -kKeyInf;
#pragma unroll 1
  for (int i = static_cast<int>(ptx::recomputed(lane_id())); i < part.row_stripes(); i += 32)
    key = max(key, order_key(s.chunks.top[i]));
  return __reduce_max_sync(kAllLanes, key);
}

// The stripes of this warp for which wanted(largest logit of a chunk) says that they may have something.
template <class Part, class Wanted>
__device__ __forceinline__ uint32_t stripes_with(const Part& part, const RowShared& s, Wanted wanted) {
  const int g = own_stripe(part);
  return part.stripes_of(__ballot_sync(kAllLanes, g >= 0 && wanted(s.chunks.top[in_row(part, max(g, 0))])));
}

// Shares of the row's total: that of chunk threadIdx.x, those before it, and all.
struct RowShares {
  uint64_t own, before, total;
};

// After meet_chunks; all threads, with a barrier in it.
template <class Part>
__device__ __forceinline__ RowShares row_shares(const Part& part, RowShared& s, const Softmax& row) {
  const int c = static_cast<int>(ptx::recomputed(threadIdx.x));
  const uint64_t own = c < part.row_stripes() ? chunk_share(row, {s.chunks.top[c], s.chunks.mass[c]}) : 0;
  uint64_t total;
  const uint64_t before = block_below(own, s.warp_part, &total);
  return {own, before, total};
}

// The row's total, with what each of its chunks has of it in s.chunks.share and all in s.guess.row_total.
template <class Part>
__device__ __forceinline__ uint64_t keep_shares(const Part& part, RowShared& s) {
  const int c = static_cast<int>(ptx::recomputed(threadIdx.x));
  const RowShares shares = row_shares(part, s, s.softmax);
  if (c < part.row_stripes()) {
    const float exponent = s.softmax.t(s.chunks.top[c]);
    s.chunks.share[c] = {exponent, exp2f(exponent), static_cast<float>(shares.own) * 0x1p-40f};
  }
  if (c == 0) s.guess.row_total = shares.total;
  clear_more(s);
  __syncthreads();
  return shares.total;
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
        low(kept.keeps_everything() ? -INFINITY : key_value(kept.threshold.key)),
        last(static_cast<int>(kept.threshold.id)),
        least(kept.least) {}

  __device__ __forceinline__ bool keeps(float x, int id) const { return (x > low) | ((x == low) & (id <= last)); }
  // Without branches: what is not kept counts as -inf, which has no mass.
  __device__ __forceinline__ uint64_t of(float x, int id) const {
    const uint64_t mass = masses(keeps(x, id) ? x : -INFINITY);
    return mass >= least ? mass : 0;
  }
  // The stripes of this warp that may have any, by their largest.
  template <class Part>
  __device__ __forceinline__ uint32_t stripes(const Part& part, const RowShared& s) const {
    return stripes_with(part, s, [&](float top) { return top >= low && (top == INFINITY || masses(top) >= least); });
  }
  // Whether a vector may have any: of most rows most vectors have none.
  template <class Elements>
  __device__ __forceinline__ bool any(const Elements& elements) const {
    bool found = false;
#pragma unroll
    for (float x : elements.x) found = found || x >= low;
    return found;
  }
  // The sum of a vector whose first element is `id`.
  template <class Elements>
  __device__ __forceinline__ uint64_t sum(const Elements& elements, int id) const {
    constexpr int kLength = static_cast<int>(sizeof elements.x / sizeof(float));
    uint64_t total = 0;
    if (any(elements)) {
#pragma unroll
      for (int j = 0; j < kLength; ++j) total += of(elements.x[j], id + j);
    }
    return total;
  }
};

// The stripes of this warp.
template <class Part>
__device__ __forceinline__ void clear_stripes(const Part& part, RowShared& s) {
  const int g = own_stripe(part);
  if (g >= 0) s.stripes.mass[g] = 0;
  __syncwarp();
}
// After stripe `at` of this warp, in which this lane has the sum: that of all lanes.
template <class Part>
__device__ __forceinline__ uint64_t end_stripe(const Part& part, RowShared& s, int at, uint64_t& sum) {
  const uint64_t all = warp_sum(sum);
  if (lane_id() == 0) s.stripes.mass[static_cast<int>(ptx::recomputed(warp_id())) * part.stripes_each() + at] = all;
  sum = 0;
  return all;
}

// Sum of this warp's kept masses, in all lanes; by stripes in s.stripes.mass. Stripes whose largest weighs too little
// are left out.
template <class Part>
__device__ __forceinline__ uint64_t warp_masses(const Part& part, RowShared& s, const KeptMasses& kept) {
  clear_stripes(part, s);
  uint64_t sum = 0, total = 0;
  with_masses(kept.softmax, [&](auto masses) SPECDEC_INLINED {
    const VectorMasses vectors(kept, masses);
    part.sweep(vectors.stripes(part, s), [&](int v, const auto& elements, bool) {
      sum += vectors.sum(elements, part.id(v));
    }, [&](int at) { total += end_stripe(part, s, at, sum); });
  });
  __syncwarp();
  return total;
}

// The token in a warp's stripe at which the kept masses, summed in the order of ids, exceed `rest`; -1 in all threads
// of the block but one.
template <class Part, class Masses>
__device__ __forceinline__ int drawn_in_stripe(const Part& part, RowShared& s, const VectorMasses<Masses>& masses,
                                               int first, int last, uint64_t rest) {
  static_assert(Part::kStripe <= kRowThreads, "a thread for each vector");
  const int v = first + static_cast<int>(threadIdx.x);
  const auto elements = part[min(v, last - 1)];
  const uint64_t sum = v < last ? masses.sum(elements, part.id(v)) : 0;
  uint64_t total;
  const uint64_t below = block_below(sum, s.warp_part, &total);
  if (below > rest || rest - below >= sum) return -1;
  rest -= below;
#pragma unroll
  for (int j = 0; j < Part::kLength; ++j) {
    const uint64_t mass = masses.of(elements.x[j], part.id(v) + j);
    if (rest < mass) return part.id(v) + j;
    rest -= mass;
  }
  return -1;
}

// Draws the row's token from the warps' sums `own` of kept masses, and their sums before and in all; -1 in all threads
// but one. All blocks of the row call it, with s.stripes.mass.
template <class Part>
__device__ __forceinline__ int draw_token(const Part& part, RowShared& s, const KeptMasses& kept, Published sums,
                                          uint64_t own) {
  const uint64_t point = draw_point(s.drawn.random, sums.total);
  if (lane_id() == 0 && point >= sums.before && point - sums.before < own) {
    s.drawn.warp = static_cast<int>(warp_id());
    s.drawn.point = point - sums.before;
  }
  __syncthreads();
  const int warp = s.drawn.warp;
  if (warp < 0) return -1;
  return with_masses(kept.softmax, [&](auto masses) SPECDEC_INLINED {
    const VectorMasses vectors(kept, masses);
    uint64_t rest = s.drawn.point;
    const uint64_t* masses_of = s.stripes.mass + warp * part.stripes_each();
    int at = 0;
    for (; at < part.stripes(warp) - 1 && rest >= masses_of[at]; ++at) rest -= masses_of[at];
    return drawn_in_stripe(part, s, vectors, part.begin(warp, at), part.end(warp, at), rest);
  });
}

// Draws the token of a row without filters, from the sums of its chunks; otherwise as draw_token.
template <class Part>
__device__ __forceinline__ int draw_from_chunks(const Part& part, RowShared& s) {
  const Softmax softmax = s.softmax;
  const RowShares shares = row_shares(part, s, softmax);
  const uint64_t point = draw_point(s.drawn.random, shares.total);
  const int c = static_cast<int>(threadIdx.x), mine = c - part.first_stripe();
  if (c == 0) s.drawn.total = shares.total;
  if (point >= shares.before && point - shares.before < shares.own && mine >= 0 && mine < part.block_stripes()) {
    s.drawn.warp = static_cast<int>(warp_id());
    s.drawn.point = point - shares.before;
    s.drawn.chunk = {s.chunks.top[c], s.chunks.mass[c]};
    s.drawn.id = c * kChunkIds;
  }
  __syncthreads();
  if (s.drawn.warp < 0) return -1;
  constexpr int kEach = 4;
  static_assert(kChunkIds <= kEach * kRowThreads, "a chunk by the block");
  const uint64_t rest = s.drawn.point, weight = chunk_weight(softmax, s.drawn.chunk.top);
  const Softmax in_chunk = {s.drawn.chunk.top, softmax.inv_temperature};
  const int begin = static_cast<int>(threadIdx.x) * kEach, first = s.drawn.id + begin;
  uint64_t mass[kEach], sum = 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const bool real = begin < kChunkIds && part.has(first + j);
    sum += mass[j] = in_chunk(real ? part.value(first + j) : -INFINITY);
  }
  if (begin >= kChunkIds) sum = 0;
  uint64_t total, prefix = block_below(sum, s.warp_part, &total);
  if (draw_reached(prefix, weight, rest) || !draw_reached(prefix + sum, weight, rest)) return -1;
  int before = 0;
#pragma unroll
  for (int j = 0; j < kEach - 1; ++j) {
    prefix += mass[j];
    before += draw_reached(prefix, weight, rest) ? 0 : 1;
  }
  return first + before;
}

}  // namespace specdec::cuda
