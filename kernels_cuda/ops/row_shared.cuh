// Shared data of a row's blocks: values of warps, short lists, histograms. One RowShared per block; the lists are those
// of the first block, the leader.
#pragma once

#include "row_part.cuh"

namespace specdec::cuda {

constexpr int kShort = kRowThreads / 2;  // elements of a short list
constexpr int kSorted = 80;  // elements of a sorted one: most first elements that are found at once
constexpr int kMaxRowStripes = kRowWarps * kMaxStripes;
static_assert(kMaxRowStripes <= kRowThreads, "a thread for each");
static_assert(kSorted <= kRowGroups, "a pivot is a maximum of a group");

// Elements in no order. `count` goes on beyond kShort, the rest does not.
struct ShortList {
  uint32_t count;
  float value[kShort];
  int32_t id[kShort];

  // From any block, into the leader's.
  __device__ __forceinline__ void append(float x, int at_id) {
    const uint32_t at = atomicAdd(&count, 1u);
    if (at >= kShort) return;
    value[at] = x;
    id[at] = at_id;
  }
};

// Counts and masses by bucket: the mass in three pieces of 14 bits, so that a block's sums fit 32 bits.
struct Cells {
  uint32_t word[4][kBuckets];  // count, mass pieces from the lowest
};

// A search for the shortest beginning of the order that reaches `need` (1 or more). In shared memory, as all that must
// outlive a pass: registers are what a pass needs most.
struct RowSearch {
  Goal goal;
  uint64_t need;
  KeyRange range;  // the threshold is in here
  KeyGrid grid;  // for the next histogram
  Weight above;  // of the elements above `range`
  Weight inside;  // of the elements in `range`
  bool reached;
};

// Exponents t, high >= low: where a threshold is presumed.
struct Bracket {
  float high, low;
};

// What lies at an exponent or above it, as far as the chunks' sums show: at least and at most, as a count or a mass
// (2^40 as 1), and at most as a count.
struct Bounds {
  float least, most, count;

  __device__ __forceinline__ void add(const Bounds& other) {
    least += other.least;
    most += other.most;
    count += other.count;
  }
};
constexpr int kSteps = 64;  // exponents that bounds are known for
constexpr int kSlices = kRowThreads / kSteps;
// Sampled elements by their exponents in the row's bracket, from the lowest.
constexpr int kSampleCells = kRowThreads;
struct Tail {
  float weight, squares;  // sums

  __device__ __forceinline__ void add(float x) {
    weight += x;
    squares += x * x;
  }
};
struct Sample {
  uint32_t count[kSampleCells];  // in units of row_guess.cuh
  Tail scan[kRowWarps];
  float all, margin;  // weight of the row; what the estimate may be off by
};
// Exponent of a chunk's largest, its weight, and the chunk's share of the row's total, 2^40 as 1.
struct ChunkShare {
  float exponent, largest, share;
};

// Data of each phase. Of the row's first elements (row_top.cuh):
struct TopK {
  // Group maxima of the whole row.
  int32_t group_key[kRowGroups];
  int32_t staged_key[kRowGroups];
  int32_t thread_key[kRowThreads];  // the largest of each thread's elements
  float thread_second[kRowThreads];  // that of its other vectors
  int thread_vector[kRowThreads];  // where the largest comes first
  int32_t pivot;
  int32_t first_id;
  ShortList ties;
  float sorted_value[kSorted];
  int32_t sorted_id[kSorted];
  uint16_t owner[kRowThreads];
  int owners;
};

// Of a search (row_search.cuh): where it is, a histogram's sums, a copy of the leader's list, and what it found.
struct SearchShared {
  RowSearch now;
  Weight merged[kBuckets];
  float value[kShort];
  int32_t id[kShort];
  int64_t sort_key[kShort];
  uint64_t mass[kShort];
  Threshold threshold;  // what is kept
  Weight kept;
};

// Of the guess at a threshold (row_guess.cuh), and of the pass that proves it (row_threshold.cuh).
struct GuessShared {
  uint64_t row_total, need;  // of the row, and of the threshold
  Bracket bracket;
  float most;  // elements in it, at most
  Tail below[kRowGroups];  // what the warps of the row have sampled below it
  uint32_t listed;  // elements in the block's list
};

// Used by one phase after the other.
union Scratch {
  Cells cells[2];  // of a search, in turns
  Bounds bounds[kSlices][kSteps];
  Sample sample;
};

// Of the row's chunks (row_masses.cuh). Where sums were not asked for, the largest logits are not known: +inf.
struct Chunks {
  float top[kMaxRowStripes];
  uint64_t mass[kMaxRowStripes];
  ChunkShare share[kMaxRowStripes];
};

// Of the block's stripes.
struct Stripes {
  uint64_t mass[kMaxRowStripes];  // of what is kept
  // Of elements in the list: sums of the lower 20 bits of their masses, and of the others.
  uint32_t more[2][kMaxRowStripes];
};

// Masses of the sorted first elements, and of those that are kept (row_filter.cuh).
struct ShortMasses {
  uint64_t mass[kSorted], kept[kSorted];
};

// Of a draw (row_masses.cuh).
struct Drawn {
  uint64_t random, total;
  int warp;
  uint64_t point;
  ChunkSum chunk;
  int id;  // the chunk's first
  float logit;  // of the row's token
};

// The published arrays of RowShared; phases that do not overlap share one.
enum PublishedAs : int {
  kListedCount = 0,  // and where their list is full
  kTieCount = 0,
  kMassAbove = 1,
  kRankCount = 1,
  kCountAbove = 2,
  kListedMass = 2,
  kChunkShares = 2,
  kKeptMass = 3,
};

struct RowShared {
  SamplingParams params;
  Softmax softmax;
  uint64_t published[4][kRowGroups];
  uint64_t warp_part[kRowWarps];
  float warp_sum[kRowWarps];
  ShortList above;
  TopK top;
  SearchShared search;
  GuessShared guess;
  Scratch scratch;
  Chunks chunks;
  Stripes stripes;
  ShortMasses short_list;
  Drawn drawn;
};

// Before the block arrives at the cluster's first barrier.
__device__ __forceinline__ void clear_shared(RowShared& s) {
  if (threadIdx.x != 0) return;
  s.above.count = 0;
  s.top.ties.count = 0;
  s.top.first_id = 0x7FFFFFFF;
  s.top.owners = 0;
  s.drawn.warp = -1;
}

// The largest key of the row, from the largest of every thread. The cluster's first meeting: it waits for a barrier at
// which all have arrived.
__device__ __forceinline__ int32_t cluster_max(RowShared& s, int32_t own_key) {
  const int blocks = Cluster::size(), rank = Cluster::rank(), tid = static_cast<int>(threadIdx.x);
  const int lanes = 32 / (kMaxCluster / blocks), groups = kRowGroups / blocks;
  s.top.thread_key[tid] = own_key;
  int32_t key = own_key;
  for (int d = lanes / 2; d >= 1; d /= 2) key = max(key, __shfl_xor_sync(kAllLanes, key, d));
  if (tid % lanes == 0) s.top.staged_key[tid / lanes] = key;
  __syncthreads();
  Cluster::wait();
  if (tid < kRowGroups) {
    Cluster::of(s.top.group_key, tid / groups)[rank * groups + tid % groups] = s.top.staged_key[tid % groups];
  }
  Cluster::sync();
  int32_t top = s.top.group_key[lane_id()];
#pragma unroll
  for (int i = static_cast<int>(lane_id()) + 32; i < kRowGroups; i += 32) top = max(top, s.top.group_key[i]);
  return __reduce_max_sync(kAllLanes, top);
}

// A key that at least `need` (1 .. kRowGroups) elements reach: the need-th largest maximum of a group.
__device__ __forceinline__ int32_t pivot_key(RowShared& s, int need) {
  constexpr int kThreads = kRowThreads / kRowGroups;
  const int own = static_cast<int>(threadIdx.x) / kThreads, part = static_cast<int>(threadIdx.x) % kThreads;
  const int32_t key = s.top.group_key[own];
  int before = 0;
#pragma unroll 8
  for (int g = part; g < kRowGroups; g += kThreads) {
    const int32_t other = s.top.group_key[g];
    before += other > key || (other == key && g < own) ? 1 : 0;
  }
#pragma unroll
  for (int d = 1; d < kThreads; d *= 2) before += __shfl_xor_sync(kAllLanes, before, d);
  __syncthreads();  // the pivot before has been read
  if (part == 0 && before == need - 1) s.top.pivot = key;
  __syncthreads();
  return s.top.pivot;
}

}  // namespace specdec::cuda
