// Shared by kernels: teams of lanes, exact reductions and scans, waiting for the previous launch.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ptx.cuh"

namespace specdec::cuda {

constexpr unsigned kWarp = 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;

// Waits until all earlier launches in the stream are complete. It must be the first statement in every thread: `launch`
// starts kernels early, and later launches rely on it. (The second launch of the n-gram ops first reads data that the
// first does not change.)
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  ptx::wait_for_previous_grid();
#endif
}

// Lets the next launch of the stream start on the free part of the chip, where it waits for the end of this one.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  ptx::launch_dependent_grid();
#endif
}

__device__ __forceinline__ unsigned lane_id() { return threadIdx.x % kWarp; }
__device__ __forceinline__ unsigned warp_id() { return threadIdx.x / kWarp; }

// kLanes neighbouring lanes of a warp, a power of two. All lanes of the warp call a team's functions together.
template <unsigned kLanes>
struct Team {
  static_assert(kLanes <= kWarp && (kLanes & (kLanes - 1)) == 0, "a part of a warp");

  static __device__ __forceinline__ unsigned rank() { return threadIdx.x % kLanes; }
  // Bit i: whether lane i of the team says yes.
  static __device__ __forceinline__ uint32_t ballot(bool yes) {
    const uint32_t warp = __ballot_sync(kAllLanes, yes);
    if constexpr (kLanes == kWarp) return warp;
    return warp >> (lane_id() / kLanes * kLanes) & ((1u << (kLanes % kWarp)) - 1u);
  }
  // The value of lane `from` of the team.
  template <typename T>
  static __device__ __forceinline__ T get(T value, unsigned from) {
    return __shfl_sync(kAllLanes, value, static_cast<int>(from), kLanes);
  }
};

// Sum over the lanes of a warp, in all of them.
template <typename T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int d = 1; d < 32; d *= 2) value += __shfl_xor_sync(kAllLanes, value, d);
  return value;
}

template <typename T>
__device__ __forceinline__ T warp_max(T value) {
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const T other = __shfl_xor_sync(kAllLanes, value, d);
    if (other > value) value = other;
  }
  return value;
}

// Sum over this lane and those below.
template <typename T>
__device__ __forceinline__ T warp_inclusive(T value) {
#pragma unroll
  for (unsigned d = 1; d < 32; d *= 2) {
    const T below = __shfl_up_sync(kAllLanes, value, d);
    if (lane_id() >= d) value += below;
  }
  return value;
}

// The sum over the warps below this one, and in `total` over all; `parts` is shared memory of one cell a warp. The
// caller has a barrier before `parts` is used again.
template <typename T>
__device__ __forceinline__ T block_warps_below(T warp_total, T* parts, T* total) {
  if (lane_id() == 0) parts[warp_id()] = warp_total;
  __syncthreads();
  const unsigned warps = blockDim.x / kWarp;
  const T part = lane_id() < warps ? parts[lane_id()] : T(0);
  *total = warp_sum(part);
  return warp_sum(lane_id() < warp_id() ? part : T(0));
}

// The sum over the threads below this one; as above.
template <typename T>
__device__ __forceinline__ T block_below(T own, T* parts, T* total) {
  const T upto = warp_inclusive(own);
  return block_warps_below(__shfl_sync(kAllLanes, upto, kWarp - 1), parts, total) + upto - own;
}

}  // namespace specdec::cuda
