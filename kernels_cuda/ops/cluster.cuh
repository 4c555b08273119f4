// Thread block clusters, and their stand-in before compute capability 9, where a block is alone.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ptx.cuh"

namespace specdec::cuda {

constexpr int kMaxCluster = 8;  // blocks, on every device that has clusters; a power of two, as all numbers of them
constexpr int kWidestCluster = 16;  // blocks, of kernels and on devices that allow it

// A block's cluster, usually the blocks that share a row or a slot. Re-read from special registers each time: cheaper
// than keeping it live across all passes of a row.
struct Cluster {
  // Its number in the grid.
  __device__ __forceinline__ static int64_t index() {
#if __CUDA_ARCH__ >= 900
    return ptx::cluster_index();
#else
    return blockIdx.x;
#endif
  }
  __device__ __forceinline__ static int rank() {
#if __CUDA_ARCH__ >= 900
    return static_cast<int>(ptx::cluster_rank());
#else
    return 0;
#endif
  }
  // Blocks that were launched, and those that work on a row: the others of a wider cluster return early, or share
  // nothing but the row's chunks.
  __device__ __forceinline__ static int launched() {
#if __CUDA_ARCH__ >= 900
    return static_cast<int>(ptx::cluster_size());
#else
    return 1;
#endif
  }
  __device__ __forceinline__ static int size() {
    const int blocks = launched();
    return blocks < kMaxCluster ? blocks : kMaxCluster;
  }
  // Makes earlier stores to any block's shared memory visible to all. `sync` in two halves, with other work in between.
  // Also required before the first access to another block's memory, which may not have started.
  __device__ __forceinline__ static void arrive() {
#if __CUDA_ARCH__ >= 900
    ptx::arrive_cluster();
#endif
  }
  // The same where all threads of the block come at once: one warp releases what any has stored, since a release waits
  // for the memory. It costs registers, which not every kernel has.
  __device__ __forceinline__ static void arrive_together() {
#if __CUDA_ARCH__ >= 900
    __syncthreads();
    if (threadIdx.x < 32) {
      ptx::arrive_cluster();
    } else {
      ptx::arrive_cluster_relaxed();
    }
#endif
  }
  __device__ __forceinline__ static void wait() {
#if __CUDA_ARCH__ >= 900
    ptx::wait_cluster();
#else
    __syncthreads();
#endif
  }
  __device__ __forceinline__ static void sync() {
    arrive();
    wait();
  }
  // A block's copy of a shared variable.
  template <typename T>
  __device__ __forceinline__ static T* of(T* own, int rank) {
#if __CUDA_ARCH__ >= 900
    return ptx::shared_of(own, static_cast<uint32_t>(rank));
#else
    (void)rank;
    return own;
#endif
  }
};

}  // namespace specdec::cuda
