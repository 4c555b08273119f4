// The first elements of a row in order, for as many as fit the sorted list: elements that reach a pivot known from the
// maxima of groups, which are few, sorted by counting.
#pragma once

#include "row_shared.cuh"

namespace specdec::cuda {

// The largest of the elements that a thread has looked at, the first vector that has it, and the largest of the others.
struct ThreadTop {
  float largest = -INFINITY, other = -INFINITY;  // largest: NaN if there is one
  int vector = 0;

  template <class Elements>
  __device__ __forceinline__ void look_at(int v, const Elements& elements) {
    float most = elements.x[0];
#pragma unroll
    for (float x : elements.x) most = ptx::max_or_nan(most, x);
    if (most > largest || (most == largest && v < vector)) vector = v;  // a row's ends come last
    other = fmaxf(other, fminf(largest, most));
    largest = ptx::max_or_nan(largest, most);
  }
};

// For RowPart::load where chunks do not matter.
struct NoChunks {
  template <class Chunk>
  __device__ __forceinline__ void operator()(Chunk& chunk, float) const {
#pragma unroll
    for (int k = 0; k < static_cast<int>(sizeof chunk.x / sizeof(uint4)); ++k) chunk.used(k);
  }
};
// Loads the row's part and returns the row's largest key, with what find_first and collect_top need. `by_chunk`: as in
// RowPart::load.
template <class L, class Part, class ByChunk, class... Begun>
__device__ __forceinline__ int32_t load_tops(Part& part, RowShared& s, ByChunk& by_chunk, Begun&... begun) {
  ThreadTop top;
  part.load([&](int v, const Elements<L>& elements) { top.look_at(v, elements); }, by_chunk, begun...);
  s.top.thread_second[threadIdx.x] = top.other;
  s.top.thread_vector[threadIdx.x] = top.vector;
  return cluster_max(s, order_key(top.largest));
}

// f(value, id) for those of a vector's elements that are the row's; `id` is the first one's.
template <class Part, class Vector, class F>
__device__ __forceinline__ void each_of(const Part& part, const Vector& elements, int id, F f) {
#pragma unroll
  for (int j = 0; j < Part::kLength; ++j) {
    if (part.has(id + j)) f(elements.x[j], id + j);
  }
}

// f(value, id) for each element of this lane's in some stripes. Few vectors are read ahead, since this is written out
// in many places and seldom needed.
template <class Part, class F>
__device__ __forceinline__ void each_element(const Part& part, uint32_t wanted, F f) {
  part.template sweep<Part::kRounds / 4>(wanted, [&](int v, const auto& elements, bool real) {
    if (real) each_of(part, elements, part.id(v), f);
  });
}

// f(value, id) for each element of the threads in s.top.owner, which are few: all threads of the block share them.
template <class Part, class F>
__device__ __forceinline__ void each_owned(const Part& part, RowShared& s, F f) {
  const int tid = static_cast<int>(threadIdx.x), rounds = part.rounds(), count = s.top.owners * rounds;
  constexpr int kAhead = 8 / Part::kLength;  // vectors that take 8 registers
#pragma unroll 1
  for (int i = tid; i < count; i += kAhead * kRowThreads) {
    int v[kAhead];  // -1: none
    const VectorBatch<Part, kAhead> batch([&](int k) {
      const int at = min(i + k * kRowThreads, count - 1), owner = s.top.owner[at / rounds];
      const int own = part.begin(owner / 32) + owner % 32 + at % rounds * 32;
      const bool real = i + k * kRowThreads < count && own < part.end(owner / 32);
      v[k] = real ? own : -1;
      return part[real ? own : part.begin(owner / 32)];
    });
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (v[k] >= 0) each_of(part, batch.of[k], part.id(v[k]), f);
    }
  }
  __syncthreads();
  if (tid == 0) s.top.owners = 0;
}

// The smallest id of the row's largest key, in the leader's s.top.first_id after the next Cluster::sync().
template <class Part>
__device__ __forceinline__ void find_first(const Part& part, RowShared& s, int32_t key) {
  if (s.top.thread_key[threadIdx.x] != key) return;
  const int v = s.top.thread_vector[threadIdx.x];
  each_of(part, part[v], part.id(v), [&](float x, int id) {
    if (order_key(x) == key) atomicMin(&Cluster::of(&s, 0)->top.first_id, id);
  });
}

// Appends the elements above a pivot to the leader's s.above and those equal to it to its s.top.ties. Most threads that
// have any have one.
template <class Part>
__device__ __forceinline__ void collect_top(const Part& part, RowShared& s, int32_t pivot) {
  RowShared* leader = Cluster::of(&s, 0);
  const auto append = [&](float x, int id) {
    const int32_t key = order_key(x);
    if (key >= pivot) (key > pivot ? leader->above : leader->top.ties).append(x, id);
  };
  const int tid = static_cast<int>(threadIdx.x);
  const bool some = s.top.thread_key[tid] >= pivot, several = some && order_key(s.top.thread_second[tid]) >= pivot;
  if (several) s.top.owner[atomicAdd(&s.top.owners, 1)] = static_cast<uint16_t>(tid);
  const int v = s.top.thread_vector[tid];
  if (some && !several) each_of(part, part[v], part.id(v), append);
  if (__syncthreads_or(several)) each_owned(part, s, append);
}

// The id of the n-th (from 1) element with a key of the vectors [begin, end), which have that many at least; in all
// lanes of a warp.
template <class Part>
__device__ __forceinline__ int nth_tie(const Part& part, int begin, int end, int32_t key, int n) {
  int before = 0;
  constexpr int kAhead = 4;  // loads under way at once
#pragma unroll 1
  for (int at = begin; at < end; at += kAhead * 32) {
    uint32_t equal[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int v = at + k * 32 + static_cast<int>(lane_id()), id = part.id(v);
      equal[k] = 0;
      const auto elements = part[min(v, end - 1)];
#pragma unroll
      for (int j = 0; j < Part::kLength; ++j) {
        if (v < end && part.has(id + j) && order_key(elements.x[j]) == key) equal[k] |= 1u << j;
      }
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int inclusive = warp_inclusive(__popc(equal[k])), missing = n - before - (inclusive - __popc(equal[k]));
      const uint32_t lanes = __ballot_sync(kAllLanes, missing <= __popc(equal[k]));
      if (lanes != 0) {
        const int id = part.id(at + k * 32 + static_cast<int>(lane_id()));
        const int rank = static_cast<int>(__fns(equal[k], 0, missing > 0 ? missing : 1));
        return __shfl_sync(kAllLanes, id + rank, __ffs(static_cast<int>(lanes)) - 1);
      }
      before += __shfl_sync(kAllLanes, inclusive, 31);
    }
  }
  return -1;
}

// After collect_top and a Cluster::sync(): whether the leader's lists hold the first `need` elements, perhaps with
// more. All blocks call it and get the same.
template <class Part>
__device__ __forceinline__ bool settle_top(const Part& part, RowShared& s, int need, int32_t pivot) {
  RowShared* leader = Cluster::of(&s, 0);
  const int above = static_cast<int>(leader->above.count), ties = static_cast<int>(leader->top.ties.count);
  if (above > kShort) {
    Cluster::sync();  // all have read the count
    if (Cluster::rank() == 0 && threadIdx.x == 0) s.above.count = 0;
    return false;
  }
  if (above >= need || ties <= kShort) return true;
  // Too many are equal to the pivot: only the first of them count, which are in the first warps that have any.
  int count = 0;
  each_element(part, ~0u, [&](float x, int) { count += order_key(x) == pivot ? 1 : 0; });
  count = warp_sum(count);
  const int before = static_cast<int>(meet_sums(s.published[kTieCount], static_cast<uint64_t>(count)).before);
  const int missing = need - above;
  for (int n = 1; n <= min(count, missing - before); ++n) {
    const int warp = static_cast<int>(warp_id()), id = nth_tie(part, part.begin(warp), part.end(warp), pivot, n);
    if (lane_id() == 0) {
      leader->top.ties.value[before + n - 1] = part.value(id);
      leader->top.ties.id[before + n - 1] = id;
    }
  }
  if (Cluster::rank() == 0 && threadIdx.x == 0) s.top.ties.count = missing;
  Cluster::sync();
  return true;
}

// In the leader, after settle_top: the first `need` elements in order.
__device__ __forceinline__ void sort_top(RowShared& s, int need) {
  const int above = static_cast<int>(s.above.count),
            n = above + (above >= need ? 0 : static_cast<int>(s.top.ties.count));
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kRowThreads) {
    const float x = i < above ? s.above.value[i] : s.top.ties.value[i - above];
    const int id = i < above ? s.above.id[i] : s.top.ties.id[i - above];
    const int32_t key = order_key(x);
    int rank = 0;
    for (int j = 0; j < above; ++j) {
      const int32_t other = order_key(s.above.value[j]);
      rank += other > key || (other == key && s.above.id[j] < id) ? 1 : 0;
    }
    if (i >= above) {
      for (int j = 0; j < n - above; ++j) rank += s.top.ties.id[j] < id ? 1 : 0;
    }
    if (rank < need) {
      s.top.sorted_value[rank] = x;
      s.top.sorted_id[rank] = id;
    }
  }
  __syncthreads();
}

}  // namespace specdec::cuda
