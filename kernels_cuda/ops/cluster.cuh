// Thread block clusters, and their stand-in before generation 9, where a block is alone.
#pragma once

#include <cstdint>

namespace specdec::cuda {

constexpr int kMostCluster = 8;  // blocks, on every device that has clusters; a power of two, as all numbers of them

// The cluster that a block belongs to: as a rule, the blocks that share a row or a slot. What it is is asked anew every
// time, which is cheaper than a register through all passes of a row.
struct Cluster {
  // Its number in the grid.
  __device__ __forceinline__ static int64_t index() {
#if __CUDA_ARCH__ >= 900
    uint32_t x;
    asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(x));
    return x;
#else
    return blockIdx.x;
#endif
  }
  __device__ __forceinline__ static int rank() {
#if __CUDA_ARCH__ >= 900
    uint32_t x;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(x));
    return static_cast<int>(x);
#else
    return 0;
#endif
  }
  __device__ __forceinline__ static int size() {
#if __CUDA_ARCH__ >= 900
    uint32_t x;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(x));
    return static_cast<int>(x);
#else
    return 1;
#endif
  }
  // What all threads stored before in any block's shared memory is seen by all after. `sync` in two halves, between
  // which a block does something else. Before the first access to another block's memory, too: it may not have started.
  __device__ __forceinline__ static void arrive() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
  }
  __device__ __forceinline__ static void wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
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
    uint64_t address;
    asm("mapa.u64 %0, %1, %2;" : "=l"(address) : "l"(reinterpret_cast<uint64_t>(own)), "r"(rank));
    return reinterpret_cast<T*>(address);
#else
    (void)rank;
    return own;
#endif
  }
};

}  // namespace specdec::cuda
