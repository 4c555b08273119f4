// Thread block clusters, and their stand-in before generation 9, where a block is alone.
#pragma once

#include <cooperative_groups.h>

namespace specdec::cuda {

constexpr unsigned kMostCluster = 8;  // on every device that has clusters

struct Cluster {
#if __CUDA_ARCH__ >= 900
  static __device__ __forceinline__ unsigned rank() { return cooperative_groups::this_cluster().block_rank(); }
  static __device__ __forceinline__ unsigned blocks() { return cooperative_groups::this_cluster().num_blocks(); }
  // Before the first access to another block's memory, too: it may not have started.
  static __device__ __forceinline__ void sync() { cooperative_groups::this_cluster().sync(); }
  // The same shared variable of another block.
  template <typename T>
  static __device__ __forceinline__ T* of(T* shared, unsigned block) {
    return cooperative_groups::this_cluster().map_shared_rank(shared, block);
  }
#else
  static __device__ __forceinline__ unsigned rank() { return 0; }
  static __device__ __forceinline__ unsigned blocks() { return 1; }
  static __device__ __forceinline__ void sync() { __syncthreads(); }
  template <typename T>
  static __device__ __forceinline__ T* of(T* shared, unsigned) {
    return shared;
  }
#endif
};

}  // namespace specdec::cuda
