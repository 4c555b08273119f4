// The threshold of a softmax row at a count (top_k) or a mass (top_p) in one pass over the chunks that matter. It sums
// what lies above the bracket in which the threshold is presumed, exactly, and lists what lies in it. The search ends
// in the list or, if the guess was wrong, begins again with the whole row.
#pragma once

#include "row_guess.cuh"
#include "row_search.cuh"

namespace specdec::cuda {

// What a pass over the row finds.
struct Classified {
  Weight above;  // of the elements above the bracket
  uint32_t inside;  // elements in it
  bool listed;  // the lists of all blocks hold all of these
};

// Goes through the stripes that have anything at s.guess.bracket or above it: s.stripes.mass gets the masses above.
// With `kCounts` the elements above are counted. Elements to list are marked in a word per lane and stripe and reread
// after the pass, since nearly every vector has one in some lane, for which all lanes would wait.
template <bool kCounts, class Part>
__device__ __forceinline__ Classified classify(const Part& part, RowShared& s) {
  static_assert(Part::kRounds * Part::kLength == 32, "a bit for each element of a lane in a stripe");
  const OrdinarySoftmax masses{s.softmax};
  const uint32_t room = static_cast<uint32_t>(part.list_room());
  Listed* list = part.list();
  if (threadIdx.x == 0) s.guess.listed = 0;
  clear_stripes(part, s);
  __syncthreads();
  const float high = s.guess.bracket.high * kDepth, low = s.guess.bracket.low * kDepth;  // as depths, high <= low
  uint64_t above = 0, all_above = 0;
  uint32_t count = 0, marked = 0;
  const uint32_t wanted = stripes_with(part, s, [&](float top) { return masses.depth(top) <= low; });
  part.sweep(wanted, [&](int v, const auto& elements, bool) {
    uint32_t bits = 0;
#pragma unroll
    for (int j = 0; j < Part::kLength; ++j) {
      const float depth = masses.depth(elements.x[j]);
      const bool is_above = depth < high;
      above += exp2_mass_at(is_above ? depth : 1.0f);  // there a mass is 0
      if (kCounts && is_above) ++count;
      if (!is_above && depth <= low) bits |= 1u << j;
    }
    marked |= bits << (part.round_of(v) * Part::kLength);
  }, [&](int at) {
    all_above += end_stripe(part, s, at, above);
    uint32_t entry = atomicAdd(&s.guess.listed, static_cast<uint32_t>(__popc(marked)));
    const int first = part.begin(static_cast<int>(warp_id()), at) + static_cast<int>(lane_id());
    for (; marked != 0; marked &= marked - 1) {
      const int bit = __ffs(static_cast<int>(marked)) - 1;
      const int id = part.id(first + bit / Part::kLength * 32) + bit % Part::kLength;
      if (entry < room) list[entry].id = id;
      ++entry;
    }
  });
  __syncthreads();
  const uint64_t listed = s.guess.listed, overflow = listed > room ? 1 : 0;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(min(listed, uint64_t{room})); i += kRowThreads) {
    list[i].value = part.own_value(list[i].id);
  }
  publish(s.published[kListedCount], warp_id() == 0 ? overflow << 40 | listed : 0);
  publish(s.published[kMassAbove], all_above);
  if (kCounts) publish(s.published[kCountAbove], static_cast<uint64_t>(warp_sum(count)));
  Cluster::sync();
  constexpr bool kBefore = !Part::kOneEach;
  const uint64_t all_listed = gather<kBefore>(s.published[kListedCount]).total;
  return {
      {kCounts ? gather<kBefore>(s.published[kCountAbove]).total : 0, gather<kBefore>(s.published[kMassAbove]).total},
      static_cast<uint32_t>(all_listed),
      all_listed >> 40 == 0};
}

// f(value, id) for this lane's share of the block's list.
template <class Part, class F>
__device__ __forceinline__ void each_listed(const Part& part, const RowShared& s, F f) {
  const int listed = static_cast<int>(s.guess.listed);
  const Listed* list = part.list();
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < listed; i += kRowThreads) f(list[i].value, list[i].id);
}

// Adds what the list has of kept masses to s.stripes.mass, and returns the sum of this warp's stripes.
template <class Part>
__device__ __forceinline__ uint64_t add_listed(const Part& part, RowShared& s, const KeptMasses& kept) {
  constexpr int kLowBits = 20;  // of a mass, whose sums over a stripe have 30, and those of the rest 31
  each_listed(part, s, [&](float x, int id) {
    if (!kept.threshold.keeps(order_key(x), id)) return;
    const uint64_t mass = OrdinarySoftmax{kept.softmax}(x);
    const int g = part.stripe_of(id);
    atomicAdd(&s.stripes.more[0][g], static_cast<uint32_t>(mass) & ((1u << kLowBits) - 1u));
    atomicAdd(&s.stripes.more[1][g], static_cast<uint32_t>(mass >> kLowBits));
  });
  __syncthreads();
  const int g = own_stripe(part);
  uint64_t own = 0;
  if (g >= 0) {
    own = s.stripes.mass[g] + s.stripes.more[0][g] + (uint64_t{s.stripes.more[1][g]} << kLowBits);
    s.stripes.mass[g] = own;
  }
  __syncwarp();
  return warp_sum(own);
}

// The keys of an bracket, roughly, as a grid.
__device__ __forceinline__ KeyGrid bracket_grid(const Softmax& softmax, Bracket in, KeyRange range) {
  const float back = softmax.inv_temperature * kLog2E;
  const float high = softmax.row_max + in.high / back, low = softmax.row_max + in.low / back;
  return isfinite(high) && isfinite(low) ? KeyRange{order_key(low), order_key(high)}.grid() : range.grid();
}

// A threshold; `listed`: s.stripes.mass has the masses above s.guess.bracket, and the lists what lies in it.
// s.search.kept.mass is the whole row's.
struct SoftmaxThreshold {
  Threshold threshold;
  bool listed;
};

// Truncates an ordinary softmax row at s.params.top_k elements, or where their masses reach `need`.
template <class L, class Part>
__device__ __forceinline__ SoftmaxThreshold ordinary_threshold(const Part& part, RowShared& s, Goal goal,
                                                               uint64_t need) {
  enum { kLists, kBracket, kRow } where = kRow;  // where the threshold is looked for
  if (threadIdx.x == 0) s.guess.need = need;  // not in registers through all of this
  if constexpr (Part::kOneEach) part.cells()[threadIdx.x] = {0, 0, 0, 0};
  __syncthreads();
  uint32_t inside = kMany;
  if (s.softmax.inv_temperature > 0.0f) {
    guess_threshold(part, s, goal);
    const Classified c = goal == Goal::kCount ? classify<true>(part, s) : classify<false>(part, s);
    if (c.above.of(goal) < s.guess.need) where = c.listed ? kLists : kBracket;
    if (where != kLists && Cluster::rank() == 0 && threadIdx.x == 0) ptx::missed_guess();
    if (threadIdx.x == 0) s.search.now.above = c.above;
    inside = c.inside;
    if (goal == Goal::kCount && where == kLists && s.guess.bracket.low <= kMinT &&
        c.above.count + inside < s.guess.need) {
      // Elements of mass 0 are never drawn, so a threshold among them has no effect.
      uint64_t mass = 0;
      each_listed(part, s, [&](float x, int) { mass += OrdinarySoftmax{s.softmax}(x); });
      Cluster::sync();  // all have gathered what was published before
      publish(s.published[kListedMass], warp_sum(mass));
      Cluster::sync();
      mass = gather(s.published[kListedMass]).total;
      if (threadIdx.x == 0) s.search.kept = c.above.plus({inside, mass});
      __syncthreads();
      return {keep_all(), true};
    }
  }
  for (;;) {
    if (threadIdx.x == 0) {
      const KeyRange all = {-kKeyInf, order_key(s.softmax.row_max)};
      const Weight above = where == kRow ? Weight{0, 0} : s.search.now.above;
      const KeyGrid grid = where == kRow ? all.grid() : bracket_grid(s.softmax, s.guess.bracket, all);
      s.search.now = {goal, s.guess.need, all, grid, above, {where == kLists ? inside : kMany, 0}, true};
    }
    __syncthreads();
    const auto each = [&](auto f) SPECDEC_INLINED {
      if (where == kLists) return each_listed(part, s, f);
      const OrdinarySoftmax masses{s.softmax};
      const float high = s.guess.bracket.high * kDepth, low = s.guess.bracket.low * kDepth;
      const float least = key_value(s.search.now.range.low);
      each_element(part, stripes_with(part, s, [&](float top) { return top >= least; }), [&](float x, int id) {
        const float depth = masses.depth(x);
        if (where == kRow || (depth >= high && depth <= low)) f(x, id);
      });
    };
    const RowThreshold found = narrow<L>(part, s, where == kLists, each, FiniteSoftmax{s.softmax});
    if (found.reached) return {found.threshold, where == kLists};
    if (where == kRow) return {keep_all(), false};  // the whole row falls short
    where = kRow;
    if (Cluster::rank() == 0 && threadIdx.x == 0) ptx::missed_guess();
  }
}

// The same for a row with infinities: only its largest elements weigh anything, all the same.
template <class Part>
__device__ __forceinline__ SoftmaxThreshold infinite_threshold(const Part& part, RowShared& s, Goal goal,
                                                               uint64_t need) {
  const int32_t top = order_key(s.softmax.row_max);
  const uint64_t ties = ties_kept(goal, need, kMassOne);
  const auto each = [&](auto f) SPECDEC_INLINED { each_element(part, ~0u, f); };
  const Ties kept = ties_threshold(part, s, top, ties, each);
  if (threadIdx.x == 0) s.search.kept = {kept.count, kept.count * kMassOne};
  __syncthreads();
  return {kept.threshold, false};
}

template <class L, class Part>
__device__ __forceinline__ SoftmaxThreshold softmax_threshold(const Part& part, RowShared& s, Goal goal,
                                                              uint64_t need) {
  return is_ordinary(s.softmax) ? ordinary_threshold<L>(part, s, goal, need) : infinite_threshold(part, s, goal, need);
}

}  // namespace specdec::cuda
