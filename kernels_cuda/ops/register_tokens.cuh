// A slot's tokens, loaded together to avoid a memory wait per token.
#pragma once

#include "warp.cuh"

namespace specdec::cuda {

constexpr int kStepTokens = 8;  // of a slot in a step, as a rule

// For one thread per slot: the constructor loads the first kInRegisters tokens of a row of `width` at once; the others
// stay in memory. Loading does not depend on the number of tokens.
template <int kInRegisters = kStepTokens>
struct RegisterTokens {
  int64_t registers[kInRegisters];
  const int64_t* row;

  __device__ __forceinline__ RegisterTokens(const int64_t* row_, int64_t width) : row(row_) {
#pragma unroll
    for (int i = 0; i < kInRegisters; ++i) registers[i] = i < width ? row[i] : -1;
  }

  __device__ __forceinline__ int64_t operator[](int64_t i) const { return i < kInRegisters ? registers[i] : row[i]; }

  // body(i, token) for i in [first, end), end <= width.
  template <typename Body>
  __device__ __forceinline__ void each(int64_t first, int64_t end, Body body) const {
#pragma unroll
    for (int i = 0; i < kInRegisters; ++i) {
      if (i >= first && i < end) body(int64_t{i}, registers[i]);
    }
    for (int64_t i = first > kInRegisters ? first : kInRegisters; i < end; ++i) body(i, row[i]);
  }
};

// The rules' `contains` (specdec/phases.h), without branches over the first tokens.
template <int kInRegisters>
__device__ __forceinline__ bool contains(const RegisterTokens<kInRegisters>& tokens, int64_t count, int64_t token) {
  bool found = false;
#pragma unroll
  for (int i = 0; i < kInRegisters; ++i) found |= (i < count) & (tokens.registers[i] == token);
  for (int64_t i = kInRegisters; i < count && !found; ++i) found = tokens.row[i] == token;
  return found;
}

}  // namespace specdec::cuda
