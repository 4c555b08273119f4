// The n-gram index on the device: reading, growing and clearing the rows of specdec/ngram_compact.h.
#pragma once

#include "cluster.cuh"
#include "ngram_entries.cuh"
#include "specdec_ops/ngram_index_reset.h"
#include "specdec_ops/ngram_index_update.h"

namespace specdec::cuda {

__device__ __forceinline__ CompactHeader* index_header(uint8_t* index, int64_t row_bytes, int64_t b) {
  return reinterpret_cast<CompactHeader*>(index + b * row_bytes);
}
// In one read.
__device__ __forceinline__ CompactHeader read_header(const CompactHeader* stored) {
  const uint4 words = *reinterpret_cast<const uint4*>(stored);
  return {static_cast<int32_t>(words.x), static_cast<int32_t>(words.y), static_cast<int32_t>(words.z), {}};
}
__device__ __forceinline__ CompactTable index_table(CompactHeader* header) {
  return {reinterpret_cast<unsigned long long*>(header + 1)};
}

// Whether the index belongs to this history, by its header.
__device__ __forceinline__ bool index_is_of(const CompactHeader& header, int64_t prompt_end, int64_t end) {
  return header.seen >= 0 && header.seen <= end && (header.seen == 0 || header.prompt_end == prompt_end);
}

// First column that is not in the index.
__device__ __forceinline__ int64_t first_unseen(const CompactHeader& header) { return max64(header.seen, 1); }

// ngram_index_update: a block, or a cluster of them, a slot. Columns are entered in an order spread over the text
// (multiples of the golden section), so that an entry's first and latest columns are soon final.
constexpr int kUpdateThreads = 512;
constexpr int64_t kMaxWarpColumns = 64;

// One warp that has the table to itself: all columns from `start` on.
__device__ __forceinline__ bool enter_few(const CompactLayout& layout, CompactTable& table, const int64_t* text,
                                          Column prompt_end, Column length, Column start, int64_t* staged) {
  bool entered = true;
  const int step = WarpEntries::columns(layout);
  for (Column first = start; first < length; first += step) {
    WarpEntries entries;
    entries.find(layout, table, text, prompt_end, length, first, staged);
    entered &= entries.commit(layout, table, text, prompt_end, length);
    __syncwarp();
  }
  return entered;
}

__global__ __launch_bounds__(kUpdateThreads, 1) void ngram_index_update_kernel(NgramIndexUpdateArgs a,
                                                                               CompactLayout layout) {
  wait_for_previous();
  let_next_start();
  __shared__ uint32_t overflowed;  // of the cluster's first block
  __shared__ int64_t staged[WarpEntries::kTokens];
  const unsigned rank = Cluster::rank(), ranks = Cluster::size();
  const uint32_t thread = rank * blockDim.x + threadIdx.x, threads = ranks * blockDim.x;
  const int64_t b = blockIdx.x / ranks;
  const int32_t enc = a.seq_lens_encoder[b], dec = a.seq_lens_decoder[b];
  const History history = history_bounds(a.L, a.prompt_lens[b], a.step_idx[b]);
  CompactHeader* stored = index_header(a.index, a.X, b);
  CompactHeader header = read_header(stored);
  // The same in all blocks of the cluster.
  if (enc > 0 || dec <= 0) return;
  CompactTable table = index_table(stored);
  // A history that shrank, or got another prompt, without a reset.
  if (!index_is_of(header, history.prompt_end, history.end)) {
    header.seen = header.overflowed = 0;
    for (int64_t i = thread; i < int64_t{layout.buckets} * kCompactBucket; i += threads) table.entries[i] = 0;
  }
  if (threadIdx.x == 0) overflowed = header.overflowed != 0;
  Cluster::sync();  // all have read the header, and the table is clear
  const int64_t* text = a.token_ids_all + b * a.L;
  const Column prompt_end = static_cast<Column>(history.prompt_end), length = static_cast<Column>(history.end);
  const Column start = static_cast<Column>(first_unseen(header)), count = length - start;
  bool entered = true;
  if (header.overflowed == 0 && count <= kMaxWarpColumns) {
    if (thread < kWarp) entered = enter_few(layout, table, text, prompt_end, length, start, staged);
  } else if (header.overflowed == 0) {
    const int bits = 32 - __clz(count - 1);
    const uint32_t mask = (1u << bits) - 1, step = 0x9E3779B9u >> (32 - bits) | 1;
    for (uint32_t i = thread; i <= mask && entered; i += threads) {
      const Column next = start + static_cast<Column>(i * step & mask);
      if (next < length) entered = compact_insert(layout, table, text, prompt_end, length, next, a.min_ngram_size);
    }
  }
  if (!entered) atomicOr(Cluster::of(&overflowed, 0), 1u);
  Cluster::sync();
  if (thread == 0) {
    stored->seen = static_cast<int32_t>(history.end);
    stored->prompt_end = static_cast<int32_t>(history.prompt_end);
    stored->overflowed = static_cast<int32_t>(overflowed);
  }
}

// ngram_index_reset: every block clears its part of every row.
constexpr int kResetThreads = 256;

__global__ __launch_bounds__(kResetThreads, 1) void ngram_index_reset_kernel(NgramIndexResetArgs a) {
  wait_for_previous();
  let_next_start();
  const int64_t vectors = a.X / static_cast<int64_t>(sizeof(uint4));
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x, threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t group = 0; group < a.M; group += kWarp) {
    const int64_t b = group + lane_id();
    uint32_t wanted = __ballot_sync(kAllLanes, b < a.M && a.reset_slots[b]);
    while (wanted != 0) {
      auto* row = reinterpret_cast<uint4*>(a.index + (group + __ffs(static_cast<int>(wanted)) - 1) * a.X);
      wanted &= wanted - 1;
      for (int64_t i = thread; i < vectors; i += threads) row[i] = make_uint4(0, 0, 0, 0);
    }
  }
}

}  // namespace specdec::cuda
