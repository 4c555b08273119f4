// The exact threshold in the order (value descending, id ascending) of a row: histograms over narrowing ranges of keys,
// until a short list or only equal elements remain.
#pragma once

#include "row_masses.cuh"
#include "row_top.cuh"

namespace specdec::cuda {

// s.search.kept says what the whole row keeps.
struct RowThreshold {
  Threshold threshold;
  bool reached;
};

constexpr uint32_t kMany = ~0u;  // elements of a range that was not looked at yet

// Bits below which the keys of a type are all zero.
template <class L>
constexpr int kKeyShift = 0;
template <>
inline constexpr int kKeyShift<Float16> = 13;
template <>
inline constexpr int kKeyShift<BFloat16> = 16;

// The keys of a range that elements of the type can have.
template <class L>
__device__ __forceinline__ KeyRange possible_keys(KeyRange range) {
  constexpr int32_t kStep = int32_t{1} << kKeyShift<L>;
  const int32_t low = kStep * (range.low >> kKeyShift<L>);
  return {low < range.low ? low + kStep : low, kStep * (range.high >> kKeyShift<L>)};
}

// Adds an element to a histogram.
template <class MassOf>
__device__ __forceinline__ void count_cell(Cells& cells, int bucket, const MassOf& mass_of, float x) {
  atomicAdd(&cells.word[0][bucket], 1u);
  if constexpr (std::is_same<MassOf, NoMass>::value) return;
  const uint64_t mass = mass_of(x);
  const uint32_t low = static_cast<uint32_t>(mass) & 0x3FFFu, middle = static_cast<uint32_t>(mass >> 14) & 0x3FFFu;
  const uint32_t high = static_cast<uint32_t>(mass >> 28);
  atomicAdd(&cells.word[1][bucket], low);
  atomicAdd(&cells.word[2][bucket], middle);
  if (high != 0) atomicAdd(&cells.word[3][bucket], high);
}

// The row's histogram out of the blocks' cells, after a Cluster::sync().
__device__ __forceinline__ void merge_cells(RowShared& s, Cells& own) {
  const int blocks = Cluster::size(), word = static_cast<int>(threadIdx.x) % 4;
#pragma unroll 1
  for (int bucket = static_cast<int>(threadIdx.x) / 4; bucket < kBuckets; bucket += kRowThreads / 4) {
    uint64_t sum = 0;
#pragma unroll
    for (int r = 0; r < kMaxCluster; ++r) sum += r < blocks ? Cluster::of(&own, r)->word[word][bucket] : 0u;
    uint64_t mass = word == 0 ? 0 : sum << (14 * (word - 1));
#pragma unroll
    for (int d = 1; d < 4; d *= 2) mass += __shfl_xor_sync(kAllLanes, mass, d);
    if (word == 0) s.search.merged[bucket] = {sum, mass};
  }
  __syncthreads();
}

// Narrows s.search to the bucket in which the merged histogram reaches the goal, visible to all.
template <class L>
__device__ __forceinline__ void find_cell(RowShared& s) {
  if (warp_id() == 0) {
    constexpr int kEach = kBuckets / 32;
    const int first = static_cast<int>(lane_id()) * kEach;
    const Goal goal = s.search.now.goal;
    const uint64_t need = s.search.now.need;
    Weight sum = {0, 0};
#pragma unroll
    for (int i = 0; i < kEach; ++i) sum = sum.plus(s.search.merged[first + i]);
    const Weight upto = s.search.now.above.plus({warp_inclusive(sum.count), warp_inclusive(sum.mass)});
    const uint32_t lanes = __ballot_sync(kAllLanes, upto.of(goal) >= need);
    __syncwarp();  // all lanes have read what one of them changes
    if (lane_id() == 0) s.search.now.reached = lanes != 0;
    if (lanes != 0 && static_cast<int>(lane_id()) == __ffs(static_cast<int>(lanes)) - 1) {
      Weight above = {upto.count - sum.count, upto.mass - sum.mass};
      int b = first;
      for (; b < first + kEach - 1 && above.plus(s.search.merged[b]).of(goal) < need; ++b)
        above = above.plus(s.search.merged[b]);
      s.search.now.above = above;
      s.search.now.inside = s.search.merged[b];
      s.search.now.range = possible_keys<L>(s.search.now.range.cell(s.search.now.grid, b));
      s.search.now.grid = s.search.now.range.grid();
    }
  }
  __syncthreads();
}

// The order as one number: the larger, the earlier.
__device__ __forceinline__ int64_t sort_key_of(int32_t key, int32_t id) {
  return static_cast<int64_t>(key) * (int64_t{1} << 32) + (0x7FFFFFFF - id);
}

// Element `at` of the lists of all blocks, one after the other, after the barrier behind them.
template <class Part>
__device__ __forceinline__ Listed listed_at(const Part& part, const RowShared& s, int at) {
  int rank = 0;
  for (; rank < Cluster::size() - 1; ++rank) {
    const int count = static_cast<int>(s.published[kListedCount][rank * kRowWarps]);
    if (at < count) break;
    at -= count;
  }
  return Cluster::of(part.list(), rank)[at];
}

// Finds the threshold in the short list of what is in s.search.now.range: s.search.threshold, s.search.kept and
// s.search.now.reached for all. The list is the leader's or, if `listed`, those of all blocks. As many threads look
// at an element as there are for each.
template <class Part, class MassOf>
__device__ __forceinline__ void short_threshold(const Part& part, RowShared& s, bool listed, const MassOf& mass_of) {
  const RowShared* leader = Cluster::of(&s, 0);
  const int tid = static_cast<int>(ptx::recomputed(threadIdx.x)), n = static_cast<int>(s.search.now.inside.count);
  if (tid == 0) s.search.now.reached = false;
  if (tid < n) {
    const Listed own = listed ? listed_at(part, s, tid) : Listed{leader->above.value[tid], leader->above.id[tid]};
    s.search.value[tid] = own.value;
    s.search.id[tid] = own.id;
    s.search.sort_key[tid] = sort_key_of(order_key(own.value), own.id);
    s.search.mass[tid] = mass_of(own.value);
  }
  __syncthreads();
  static_assert(kShort * 2 <= kRowThreads, "two threads an element");
  int threads = 2;
  while (threads < 32 && n * threads * 2 <= kRowThreads) threads *= 2;
  const int i = tid / threads;
  uint32_t count = 0;
  uint64_t mass = 0;
  if (i < n) {
    const int64_t sort_key = s.search.sort_key[i];
#pragma unroll 4
    for (int j = tid % threads; j < n; j += threads) {
      if (s.search.sort_key[j] >= sort_key) {
        ++count;
        mass += s.search.mass[j];
      }
    }
  }
  for (int d = 1; d < threads; d *= 2) {
    count += __shfl_xor_sync(kAllLanes, count, d);
    mass += __shfl_xor_sync(kAllLanes, mass, d);
  }
  if (i < n && tid % threads == 0) {
    const Weight kept = s.search.now.above.plus({count, mass});
    const Goal goal = s.search.now.goal;
    const uint64_t upto = kept.of(goal), before = upto - Weight{1, s.search.mass[i]}.of(goal);
    if (upto >= s.search.now.need && before < s.search.now.need) {
      s.search.threshold = {order_key(s.search.value[i]), s.search.id[i]};
      s.search.kept = kept;
      s.search.now.reached = true;
    }
  }
  __syncthreads();
}

struct Ties {
  Threshold threshold;
  uint64_t count;  // of those kept
};

// Finds it among elements of one key: the first `wanted` of them are kept, which may be all. `each` as below.
template <class Part, class Each>
__device__ __forceinline__ Ties ties_threshold(const Part& part, RowShared& s, int32_t key, uint64_t wanted,
                                               Each each) {
  uint32_t* counts = s.stripes.more[0];
  clear_more(s);
  __syncthreads();
  each([&](float x, int id) {
    if (order_key(x) == key) atomicAdd(&counts[part.stripe_of(id)], 1u);
  });
  __syncthreads();
  const int g = own_stripe(part);
  const uint32_t own = g >= 0 ? counts[g] : 0, upto = warp_inclusive(own);
  publish(s.published[kTieCount], static_cast<uint64_t>(__shfl_sync(kAllLanes, upto, 31)));
  if (threadIdx.x == 0) s.search.threshold = {key, part.size()};
  Cluster::sync();
  const Published sums = gather(s.published[kTieCount]);
  const bool here = wanted > sums.before + upto - own && wanted <= sums.before + upto;
  const uint32_t lanes = __ballot_sync(kAllLanes, here);
  if (lanes != 0 && wanted < sums.total) {
    const int at = __ffs(static_cast<int>(lanes)) - 1, warp = static_cast<int>(warp_id());
    const int missing =
        static_cast<int>(wanted - sums.before) - static_cast<int>(__shfl_sync(kAllLanes, upto - own, at));
    const int id = nth_tie(part, part.begin(warp, at), part.end(warp, at), key, missing);
    if (static_cast<int>(lane_id()) < Cluster::size())
      Cluster::of(&s, static_cast<int>(lane_id()))->search.threshold.id = id;
  }
  Cluster::sync();
  clear_more(s);
  __syncthreads();
  return {s.search.threshold, min(wanted, sums.total)};
}

// Begins a search; the caller has a barrier after the previous one.
__device__ __forceinline__ void begin_search(RowShared& s, const RowSearch& search) {
  if (threadIdx.x == 0) s.search.now = search;
  __syncthreads();
}

// Ends s.search by histograms, unless s.search.now.inside.count is few from the beginning. `each(f)` calls f(value, id)
// for this lane's share of elements, which are all that there are in the search's range; `listed`: they are in the
// blocks' lists. All blocks of the row call it; not reached: the range does not hold what is needed.
template <class L, class Part, class Each, class MassOf>
__device__ __forceinline__ RowThreshold narrow(const Part& part, RowShared& s, bool listed, Each each,
                                               const MassOf& mass_of) {
  for (int turn = 0;; turn ^= 1) {
    if (s.search.now.inside.count <= kShort) {
      if (!listed) {
        const KeyRange range = s.search.now.range;
        each([&](float x, int id) {
          if (range.has(order_key(x))) Cluster::of(&s, 0)->above.append(x, id);
        });
        Cluster::sync();
        if (Cluster::rank() == 0 && threadIdx.x == 0) s.above.count = 0;
      }
      short_threshold(part, s, listed, mass_of);
      const RowThreshold found = {s.search.threshold, s.search.now.reached};
      if (!found.reached) Cluster::sync();  // all have read the list, which the next search fills
      return found;
    }
    if (s.search.now.inside.count != kMany && s.search.now.range.low == s.search.now.range.high) {
      const KeyRange range = s.search.now.range;
      const uint64_t mass = mass_of(key_value(range.low)),
                     missing = s.search.now.need - s.search.now.above.of(s.search.now.goal);
      const uint64_t wanted = ties_kept(s.search.now.goal, missing, mass);
      const Ties ties = ties_threshold(part, s, range.low, wanted, each);
      if (threadIdx.x == 0) s.search.kept = s.search.now.above.plus({ties.count, ties.count * mass});
      __syncthreads();
      return {ties.threshold, true};
    }
    listed = false;
    Cells& cells = s.scratch.cells[turn];
    for (int i = static_cast<int>(threadIdx.x); i < 4 * kBuckets; i += kRowThreads) {
      cells.word[i / kBuckets][i % kBuckets] = 0;
    }
    __syncthreads();
    {
      const KeyRange range = s.search.now.range;
      const KeyGrid grid = s.search.now.grid;
      each([&](float x, int) {
        const int32_t key = order_key(x);
        if (range.has(key)) count_cell(cells, grid.bucket(key), mass_of, x);
      });
    }
    Cluster::sync();
    merge_cells(s, cells);
    find_cell<L>(s);
    if (!s.search.now.reached) {
      Cluster::sync();  // all have merged the cells, which the next search clears
      return {{0, 0}, false};
    }
  }
}

}  // namespace specdec::cuda
