// Thread block clusters, and their stand-in before compute capability 9, where a block is alone.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ptx.cuh"

namespace specdec::cuda {

constexpr int kMaxCluster = 8;  // blocks, on every device that has clusters; a power of two, as all numbers of them

// The cluster that a block belongs to: as a rule, the blocks that share a row or a slot. What it is is asked again
// every time, which is cheaper than a register through all passes of a row.
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
  __device__ __forceinline__ static int size() {
#if __CUDA_ARCH__ >= 900
    return static_cast<int>(ptx::cluster_size());
#else
    return 1;
#endif
  }
  // What all threads stored before in any block's shared memory is seen by all after. `sync` in two halves, between
  // which a block does something else. Before the first access to another block's memory, too: it may not have started.
  __device__ __forceinline__ static void arrive() {
#if __CUDA_ARCH__ >= 900
    ptx::arrive_cluster();
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
