// The ops' host side on NVIDIA GPUs: each launches on a stream of the current device and returns at once.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "check.h"
#include "specdec_ops/all.h"

namespace specdec::cuda {

// What the kernels are written for; larger calls are refused (backends/cuda says so in its capabilities).
constexpr int64_t kMostSlots = 8192;
constexpr int64_t kMostDraftWidth = 32;
constexpr int64_t kMostHistory = 1 << 20;
constexpr int64_t kMostVocabulary = 1 << 18;

#define SPECDEC_DECLARE(op, Args) void op(const Args& args, cudaStream_t stream);
SPECDEC_OPS(SPECDEC_DECLARE)
#undef SPECDEC_DECLARE

// Bytes of a row of an index that keeps nothing: histories are searched instead.
constexpr int64_t kNoIndexBytes = 16;

// Bytes of one slot's n-gram index, for histories of up to `row_width` tokens.
int64_t ngram_index_bytes(int64_t row_width, int min_size, int max_size);

}  // namespace specdec::cuda
