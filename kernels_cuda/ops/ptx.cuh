// PTX instructions and special registers without a CUDA C++ equivalent. Host version for tests: host/ptx.h.
#pragma once

#if defined(SPECDEC_HOST_ARCH)
#include "../host/ptx.h"
#else

#include <cstdint>

namespace specdec::cuda::ptx {

#if __CUDA_ARCH__ >= 900

// Programmatic dependent launch: from here on what the grid before wrote is seen; the grid after may start.
__device__ __forceinline__ void wait_for_previous_grid() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void launch_dependent_grid() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ uint32_t cluster_index() {
  uint32_t x;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(x));
  return x;
}
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t x;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(x));
  return x;
}
__device__ __forceinline__ uint32_t cluster_size() {
  uint32_t x;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(x));
  return x;
}
__device__ __forceinline__ void arrive_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// Without the release.
__device__ __forceinline__ void arrive_cluster_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// The same shared variable of another block of the cluster.
template <typename T>
__device__ __forceinline__ T* shared_of(T* own, uint32_t rank) {
  uint64_t address;
  asm("mapa.u64 %0, %1, %2;" : "=l"(address) : "l"(reinterpret_cast<uint64_t>(own)), "r"(rank));
  return reinterpret_cast<T*>(address);
}

#endif

__device__ __forceinline__ uint32_t dynamic_shared_bytes() {
  uint32_t bytes;
  asm volatile("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
  return bytes;
}
template <typename T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ uint4 specdec_dynamic_shared[];
  return reinterpret_cast<T*>(specdec_dynamic_shared);
}

// L2 cache policy of a read: evict first.
struct CachePolicy {
  uint64_t bits;
};
__device__ __forceinline__ CachePolicy evict_first() {
  CachePolicy policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy.bits));
  return policy;
}

// Reads 16 constant bytes here, if `wanted`, and not at their first use.
__device__ __forceinline__ void load_ahead(uint4& x, const uint4* from, bool wanted, CachePolicy policy) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.u32 wanted, %5, 0;\n"
      "@wanted ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %6;\n"
      "}"
      : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w)
      : "l"(from), "r"(static_cast<uint32_t>(wanted)), "l"(policy.bits));
}
// The same, as all reads treat the cache; saves registers.
__device__ __forceinline__ void load_ahead(uint4& x, const uint4* from, bool wanted) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.u32 wanted, %5, 0;\n"
      "@wanted ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n"
      "}"
      : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w)
      : "l"(from), "r"(static_cast<uint32_t>(wanted)));
}

// Brings what lies there into the L2 cache.
__device__ __forceinline__ void prefetch(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// The same number, opaque to the compiler, so that derived values are recomputed instead of kept in registers.
__device__ __forceinline__ uint32_t recomputed(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Counts a wrong guess, which costs time but changes no result, for tests on the host.
__device__ __forceinline__ void missed_guess() {}

// The larger one, or NaN if one of them is.
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float m;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
  return m;
}

// The same in both halves of a word.
__device__ __forceinline__ uint32_t max_or_nan_f16x2(uint32_t a, uint32_t b) {
  uint32_t m;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(m) : "r"(a), "r"(b));
  return m;
}
__device__ __forceinline__ uint32_t max_or_nan_bf16x2(uint32_t a, uint32_t b) {
  uint32_t m;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(m) : "r"(a), "r"(b));
  return m;
}

}  // namespace specdec::cuda::ptx

#endif
