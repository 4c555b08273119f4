// Arrays moved by vectors: one access where checked builds look at each. Not for CUDA.
#pragma once

#include "specdec/platform.h"

namespace specdec {

namespace detail {
#if defined(__SANITIZE_THREAD__)
constexpr int kWideBytes = 64;
#else
constexpr int kWideBytes = 32;  // a CPU's, for which g++ would make four pieces of 64
#endif
typedef uint32_t WideWords __attribute__((vector_size(kWideBytes), may_alias, aligned(2)));
}  // namespace detail

// N elements for which a function has a name, so that they need no memory; a multiple of 64 bytes.
template <class T, int N>
union Wide {
  static_assert((N & (N - 1)) == 0, "a power of two");
  T at[N];
  static_assert(sizeof(T) * N % sizeof(detail::WideWords) == 0, "whole vectors");
  detail::WideWords words[sizeof(T) * N / sizeof(detail::WideWords)];

  // Modulo N: nothing to do where an index is known to be inside, and nothing to check.
  SPECDEC_HD T& operator[](int i) { return at[i & (N - 1)]; }
  SPECDEC_HD const T& operator[](int i) const { return at[i & (N - 1)]; }

  SPECDEC_HD void load(const T* from) {
    const detail::WideWords* vectors = reinterpret_cast<const detail::WideWords*>(from);
    for (unsigned k = 0; k < sizeof(words) / sizeof(words[0]); ++k) words[k] = vectors[k];
  }
  // The first `count` elements, and 0 after them.
  SPECDEC_HD void load(const T* from, int count) {
    const detail::WideWords* vectors = reinterpret_cast<const detail::WideWords*>(from);
    constexpr int kEach = sizeof(words[0]) / sizeof(T);
    for (int k = 0; k < N / kEach; ++k) words[k] = (k + 1) * kEach <= count ? vectors[k] : detail::WideWords{};
    for (int j = count / kEach * kEach; j < count; ++j) at[j] = from[j];
  }
  SPECDEC_HD void store(T* to) const {
    detail::WideWords* vectors = reinterpret_cast<detail::WideWords*>(to);
    for (unsigned k = 0; k < sizeof(words) / sizeof(words[0]); ++k) vectors[k] = words[k];
  }
};

}  // namespace specdec
