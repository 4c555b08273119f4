// The part of CUDA C++ that the kernels of ops/ use, for the host's compiler. ../simt.h runs it.
#pragma once

// Includes that use CUDA's keywords as names come first.
#include <algorithm>
#include <array>
#include <atomic>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "../simt.h"
#include "cuda_runtime_api.h"

#define __CUDACC__ 1
#define __CUDA_ARCH__ SPECDEC_HOST_ARCH

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
// A block is a thread of the machine, and what is local to that is shared by its fibers.
#define __shared__ static thread_local

#define __grid_constant__

// The running thread's.
template <simt::Size simt::Thread::* kWhat>
struct SimtIndex {
  struct {
    operator unsigned() const { return (simt::self().*kWhat).x; }
  } x;
  struct {
    operator unsigned() const { return (simt::self().*kWhat).y; }
  } y;
};
constexpr SimtIndex<&simt::Thread::thread> threadIdx;
constexpr SimtIndex<&simt::Thread::block> blockIdx;
constexpr SimtIndex<&simt::Thread::block_size> blockDim;
constexpr SimtIndex<&simt::Thread::grid_size> gridDim;

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) longlong2 {
  long long x, y;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// Caches make no difference.
template <typename T>
T __ldg(const T* p) {
  return *p;
}
template <typename T>
T __ldcs(const T* p) {
  return *p;
}
template <typename T>
void __stcs(T* p, T value) {
  *p = value;
}

template <typename To, typename From>
To simt_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
inline unsigned __float_as_uint(float x) { return simt_bits<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return simt_bits<float>(x); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
// Towards zero: back by one unit if the nearest value lies beyond the exact sum.
inline float __fadd_rz(float a, float b) {
  const float sum = a + b, part = sum - a, rest = (a - (sum - part)) + (b - part);
  return sum != 0 && (rest < 0) == (sum > 0) && rest != 0 ? std::nextafter(sum, 0.0f) : sum;
}
inline float __saturatef(float x) { return x > 0 ? std::min(x, 1.0f) : 0.0f; }
inline float __ull2float_rn(unsigned long long x) { return static_cast<float>(x); }
inline long long __float2ll_rz(float x) { return static_cast<long long>(x); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<unsigned long long>(static_cast<Wide>(a) * b >> 64);
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)); }
// The place of the offset-th one bit from `base` upwards, itself counted; all ones if there is none.
inline unsigned __fns(unsigned mask, unsigned base, int offset) {
  for (unsigned i = base; i < 32; ++i) {
    if (mask >> i & 1 && --offset == 0) return i;
  }
  return ~0u;
}
using std::isfinite;
using std::max;
using std::min;

// Fibers switch only when they wait, so a load and its store are atomic.
template <typename T>
T simt_exchange(T* at, T value) {
  const T before = *at;
  *at = value;
  return before;
}
template <typename T>
T atomicAdd(T* at, std::common_type_t<T> n) {
  return simt_exchange(at, static_cast<T>(*at + n));
}
template <typename T>
T atomicOr(T* at, std::common_type_t<T> bits) {
  return simt_exchange(at, static_cast<T>(*at | bits));
}
template <typename T>
T atomicMax(T* at, std::common_type_t<T> value) {
  return simt_exchange(at, std::max(*at, value));
}
template <typename T>
T atomicMin(T* at, std::common_type_t<T> value) {
  return simt_exchange(at, std::min(*at, value));
}
template <typename T>
T atomicExch(T* at, std::common_type_t<T> value) {
  return simt_exchange(at, value);
}

inline void __syncthreads() { simt::meet_block(false); }
inline int __syncthreads_count(int yes) { return static_cast<int>(simt::meet_block(yes != 0).yes); }
inline int __syncthreads_or(int yes) { return simt::meet_block(yes != 0).yes != 0; }
inline int __syncthreads_and(int yes) { return simt::meet_block(yes != 0).all; }

inline void __syncwarp(unsigned mask = ~0u) { simt::vote(mask, false); }
inline unsigned __ballot_sync(unsigned mask, int yes) { return simt::vote(mask, yes != 0); }
inline int __any_sync(unsigned mask, int yes) { return simt::vote(mask, yes != 0) != 0; }

// The value of a lane `from` of 32, or one's own if `inside` is false, as at the ends of a shuffle's part of the warp.
template <typename T>
T simt_shuffle(unsigned mask, T value, unsigned from, bool inside) {
  static_assert(sizeof(T) <= sizeof(uint64_t) && std::is_trivially_copyable_v<T>, "as CUDA's shuffles");
  uint64_t word = 0;
  std::memcpy(&word, &value, sizeof value);
  word = simt::shuffle(mask, word, inside ? from : simt::self().thread.x % 32);
  std::memcpy(&value, &word, sizeof value);
  return value;
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  const unsigned lane = simt::self().thread.x % 32, part = lane & ~(static_cast<unsigned>(width) - 1);
  return simt_shuffle(mask, value, part | (static_cast<unsigned>(from) & (static_cast<unsigned>(width) - 1)), true);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits) {
  const unsigned from = (simt::self().thread.x % 32) ^ static_cast<unsigned>(bits);
  return simt_shuffle(mask, value, from, from < 32);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by) {
  const unsigned lane = simt::self().thread.x % 32;
  return simt_shuffle(mask, value, lane - by, by <= lane);
}
// fold(so far, value of a lane) over the lanes of the mask, which must be there.
template <typename T, typename Fold>
T simt_reduce(unsigned mask, T value, Fold fold) {
  T result = value;
  if (mask == ~0u) {
    for (int bits = 16; bits > 0; bits /= 2) result = fold(result, __shfl_xor_sync(mask, result, bits));
    return result;
  }
  for (unsigned lane = 0; lane < 32; ++lane) {
    const T other = simt_shuffle(mask, value, lane, (mask >> lane & 1) != 0);
    result = fold(result, other);
  }
  return result;
}
template <typename T>
T __reduce_max_sync(unsigned mask, T value) {
  return simt_reduce(mask, value, [](T most, T other) { return std::max(most, other); });
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned value) {
  // A lane's own value comes back for those that are not in the mask.
  return simt_reduce(mask, value, [](unsigned sum, unsigned other) { return sum + other; });
}

enum cudaLaunchAttributeID {
  cudaLaunchAttributeProgrammaticStreamSerialization,
  cudaLaunchAttributeClusterDimension,
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  union {
    int programmaticStreamSerializationAllowed;
    struct {
      unsigned x, y, z;
    } clusterDim;
  } val;
};
using dim3 = simt::Size;
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

template <typename... P, typename... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...), A&&... arguments) {
  simt::Launch launch = {config->gridDim, config->blockDim, config->dynamicSmemBytes, 1};
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) launch.cluster = config->attrs[i].val.clusterDim.x;
  }
  const std::tuple<P...> kept(std::forward<A>(arguments)...);
  try {
    simt::run(launch, [&] { std::apply(kernel, kept); });
  } catch (const std::runtime_error& error) {
    simt_failure = error.what();
    return cudaErrorLaunchFailure;
  }
  return cudaSuccess;
}

// Clusters lie within parts of 16 SMs, as those of an H200, each with 228 KB of shared memory.
inline cudaError_t cudaOccupancyMaxActiveClusters(int* count, const void*, const cudaLaunchConfig_t* config) {
  constexpr unsigned kParts = 8, kProcessors = 16;
  const unsigned blocks = kProcessors * (config->dynamicSmemBytes > (114 << 10) ? 1 : 2);
  unsigned cluster = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) cluster = config->attrs[i].val.clusterDim.x;
  }
  *count = static_cast<int>(kParts * (blocks / cluster));
  return cudaSuccess;
}

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize, cudaFuncAttributeNonPortableClusterSizeAllowed };
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, cudaFuncAttribute, int) {
  return cudaSuccess;
}
