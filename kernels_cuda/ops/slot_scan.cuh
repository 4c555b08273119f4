// Prefix sums over the slots of a batch. Every block sums all slots itself: lengths are few bytes, and a second launch
// or communication takes longer.
#pragma once

#include "specdec/step_index.h"
#include "warp.cuh"

namespace specdec::cuda {

// N sums of values in [0, 2^31), which stay at 2^31 - 1 once they reach it: like exact ones clamped at the end.
template <int N>
struct Sums {
  uint32_t of[N];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < N; ++i) of[i] = 0;
  }
  __device__ __forceinline__ void add(const Sums& other) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      of[i] += other.of[i];
      of[i] = of[i] < kInt32Max ? of[i] : static_cast<uint32_t>(kInt32Max);
    }
  }
  __device__ __forceinline__ Sums up(unsigned lanes) const {
    Sums moved;
#pragma unroll
    for (int i = 0; i < N; ++i) moved.of[i] = __shfl_up_sync(kAllLanes, of[i], lanes);
    return moved;
  }
  __device__ __forceinline__ Sums from(unsigned lane) const {
    Sums got;
#pragma unroll
    for (int i = 0; i < N; ++i) got.of[i] = __shfl_sync(kAllLanes, of[i], static_cast<int>(lane));
    return got;
  }
  // Over this lane and those below, of the first kLanes (a power of two).
  template <unsigned kLanes>
  __device__ __forceinline__ Sums inclusive() const {
    Sums sums = *this;
#pragma unroll
    for (unsigned d = 1; d < kLanes; d *= 2) {
      const Sums below = sums.up(d);
      if (lane_id() >= d) sums.add(below);
    }
    return sums;
  }
  // Of the lane below; nothing in lane 0.
  __device__ __forceinline__ Sums below() const {
    Sums sums = up(1);
    if (lane_id() == 0) sums.clear();
    return sums;
  }
};

// How a block of kThreads shares up to kThreads * kEach slots: thread t has [kEach * t, kEach * (t + 1)).
template <unsigned kThreads_, unsigned kEach_>
struct SlotShape {
  static constexpr unsigned kThreads = kThreads_, kEach = kEach_, kSlots = kThreads * kEach;
};

// A thread's slots: what lies before the first of them, and over all slots of the batch.
template <int N>
struct SlotSums {
  Sums<N> before, total;
};

// `own`: what this thread's slots add. All threads of the block, once in a kernel.
template <typename Shape, int N>
__device__ __forceinline__ SlotSums<N> scan_slots(const Sums<N>& own) {
  constexpr unsigned kWarps = Shape::kThreads / kWarp;
  __shared__ Sums<N> parts[kWarps];
  const Sums<N> inclusive = own.template inclusive<kWarp>();
  if (lane_id() == kWarp - 1) parts[warp_id()] = inclusive;
  __syncthreads();
  Sums<N> warps;
  warps.clear();
  if (lane_id() < kWarps) warps = parts[lane_id()];
  warps = warps.template inclusive<kWarps>();
  SlotSums<N> sums;
  sums.total = warps.from(kWarps - 1);
  sums.before = warps.below().from(warp_id());
  sums.before.add(inclusive.below());
  return sums;
}

// The slot in [0, slots) of packed item t, which has one: `starts` are the slots' first items, ascending.
__device__ __forceinline__ int slot_of(const uint32_t* starts, int slots, uint32_t t) {
  int low = 0, high = slots;  // the last slot that starts at or before t lies in [low, high)
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (starts[middle] <= t) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// This block's part of `count` items: [low, high).
struct BlockPart {
  int64_t low, high;
};
__device__ __forceinline__ BlockPart block_part(int64_t count) {
  return {count * blockIdx.x / gridDim.x, count * (blockIdx.x + 1) / gridDim.x};
}

// Packs the slots [0, slots) one after the other: share(b) is what slot b adds, starts[b] the first of the sums before
// it, and write(b, before, upto) is called for the slots of this block's part. Returns the sums over all slots. All
// threads of the block, once in a kernel.
template <typename Shape, int N, typename Share, typename Write>
__device__ __forceinline__ Sums<N> pack_slots(int64_t slots, uint32_t (&starts)[Shape::kSlots], Share share,
                                              Write write) {
  const int first = static_cast<int>(threadIdx.x * Shape::kEach);
  Sums<N> shares[Shape::kEach], own;
  own.clear();
#pragma unroll
  for (unsigned k = 0; k < Shape::kEach; ++k) {
    shares[k].clear();
    const int b = first + static_cast<int>(k);
    if (b < static_cast<int>(slots)) shares[k] = share(b);
    own.add(shares[k]);
  }
  const SlotSums<N> sums = scan_slots<Shape>(own);
  let_next_start();

  const BlockPart part = block_part(slots);
  Sums<N> before = sums.before;
#pragma unroll
  for (unsigned k = 0; k < Shape::kEach; ++k) {
    const int b = first + static_cast<int>(k);
    starts[b] = before.of[0];
    Sums<N> upto = before;
    upto.add(shares[k]);
    if (b >= part.low && b < part.high) write(b, before, upto);
    before = upto;
  }
  __syncthreads();
  return sums.total;
}

}  // namespace specdec::cuda
