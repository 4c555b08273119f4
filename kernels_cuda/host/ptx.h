// ops/ptx.cuh on the host.
#pragma once

#include <cuda_runtime.h>

#include <cmath>

#include "simt.h"
#include "specdec/row_floats.h"

namespace specdec::cuda::ptx {

// Launches do not overlap.
inline void wait_for_previous_grid() {}
inline void launch_dependent_grid() {}

inline uint32_t cluster_index() { return simt::self().block.x / simt::self().cluster_size; }
inline uint32_t cluster_rank() { return simt::self().rank; }
inline uint32_t cluster_size() { return simt::self().cluster_size; }
inline void arrive_cluster() { simt::arrive_cluster(); }
inline void arrive_cluster_relaxed() { simt::arrive_cluster(); }
inline void wait_cluster() { simt::wait_cluster(); }
template <typename T>
T* shared_of(T* own, uint32_t rank) {
  return static_cast<T*>(simt::shared_of(own, rank));
}

inline uint32_t dynamic_shared_bytes() { return static_cast<uint32_t>(simt::dynamic_shared_bytes()); }
template <typename T>
T* dynamic_shared() {
  return static_cast<T*>(simt::dynamic_shared());
}

struct CachePolicy {};
inline CachePolicy evict_first() { return {}; }
inline void load_ahead(uint4& x, const uint4* from, bool wanted, CachePolicy = {}) {
  if (wanted) x = *from;
}
inline void prefetch(const void*) {}
inline uint32_t recomputed(uint32_t x) { return x; }
inline int64_t missed_guesses = 0;
inline void missed_guess() { ++missed_guesses; }

inline float max_or_nan(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? a : b;
  return b > a || (a == b && std::signbit(a)) ? b : a;
}

template <class Widen>
uint32_t max_or_nan_x2(uint32_t a, uint32_t b, Widen widen) {
  uint32_t m = 0;
  for (int half = 0; half < 32; half += 16) {
    const uint16_t x = static_cast<uint16_t>(a >> half), y = static_cast<uint16_t>(b >> half);
    const bool second = std::isnan(widen(y)) || widen(y) > widen(x);
    m |= static_cast<uint32_t>(second && !std::isnan(widen(x)) ? y : x) << half;
  }
  return m;
}
inline uint32_t max_or_nan_f16x2(uint32_t a, uint32_t b) { return max_or_nan_x2(a, b, specdec::f16_to_f32); }
inline uint32_t max_or_nan_bf16x2(uint32_t a, uint32_t b) { return max_or_nan_x2(a, b, specdec::bf16_to_f32); }

}  // namespace specdec::cuda::ptx
