#include <cstdint>
#include <stdexcept>

#include "launch.cuh"
#include "ngram_grant.cuh"
#include "ngram_lookup.cuh"
#include "ngram_scan.cuh"

namespace specdec::cuda {
namespace {

// A little more than a device has multiprocessors.
constexpr int64_t kFewBlocks = 160;

template <typename Args>
CompactLayout index_layout(const Args& a) {
  return CompactLayout(a.row_width, a.min_size, a.max_size);
}

// Block 0 grants, kEach slots a thread at most; with an index, the warps of the others enter what their slots accepted.
template <bool kIndexed, int kThreads, int kEach>
__global__ __launch_bounds__(kThreads, 1) void ngram_settle_kernel(ProposeArgs a, CompactLayout layout) {
  if (!kIndexed || blockIdx.x == 0) {
    grant_tokens<kEach>(a);
  } else {
    __shared__ int64_t staged[kThreads / kWarp][WarpEntries::kTokens];
    const int64_t b = int64_t{blockIdx.x - 1} * (blockDim.x / kWarp) + warp_id();
    if (b < a.slots) grow_index(a, layout, b, staged[warp_id()]);
  }
}

template <bool kIndexed, int kThreads, int kEach>
void settle(const ProposeArgs& a, cudaStream_t stream) {
  const unsigned warps = blocks_for(a.slots, int64_t{kWarp} * kEach, kThreads / kWarp);
  const unsigned growing = kIndexed ? blocks_for(a.slots, warps) : 0;
  launch("ngram_match", stream, {1 + growing, warps * kWarp}, ngram_settle_kernel<kIndexed, kThreads, kEach>, a,
         index_layout(a));
}

// With an index in smaller blocks, which find room beside those of the look-up.
void settle(const ProposeArgs& a, cudaStream_t stream) {
  if (a.index == nullptr) {
    a.slots <= 1024 ? settle<false, 1024, 1>(a, stream) : settle<false, 1024, kMostSlots / 1024>(a, stream);
  } else if (a.slots <= 256) {
    settle<true, 256, 1>(a, stream);
  } else {
    a.slots <= 512 ? settle<true, 256, 2>(a, stream) : settle<true, 512, kMostSlots / 512>(a, stream);
  }
}

// `cluster`: blocks that share a row.
template <bool kHybrid, typename Shape>
void scan(const ProposeArgs& a, unsigned cluster, cudaStream_t stream) {
  launch("ngram_match", stream, {blocks_for(a.slots * cluster, 1), Shape::kThreads, 0, cluster},
         ngram_scan_kernel<kHybrid, Shape>, a);
}

template <bool kHybrid, typename Shape>
void scan_rows(const ProposeArgs& a, unsigned cluster, cudaStream_t stream) {
  launch("ngram_match", stream, {blocks_for(a.slots * cluster, 1), Shape::kThreads, 0, cluster},
         ngram_short_rows_kernel<kHybrid, Shape>, a);
}

// Short rows: by one block each if that can be, which spares it talking to others; else by the smallest shape of which
// `most` blocks hold a row, unless that makes too many to read all rows at once. False: by neither.
template <bool kHybrid, typename Shape, typename... Larger>
bool scan_short_rows(const ProposeArgs& a, unsigned most, cudaStream_t stream) {
  // A row on an odd address takes a token more.
  const int64_t blocks = a.row_width / (2 * Shape::kPairs) + 1;
  if (blocks <= most && (blocks == 1 || blocks * a.slots <= kFewBlocks)) {
    scan_rows<kHybrid, Shape>(a, static_cast<unsigned>(blocks), stream);
    return true;
  }
  if constexpr (sizeof...(Larger) > 0) return scan_short_rows<kHybrid, Larger...>(a, most, stream);
  return false;
}

template <bool kHybrid>
void find_drafts(const ProposeArgs& a, cudaStream_t stream) {
  if (a.index != nullptr) {
    launch("ngram_match", stream, {blocks_for(a.slots, kLookupWarps), kLookupWarps * kWarp},
           ngram_lookup_kernel<kHybrid>, a, index_layout(a));
    return;
  }
  using Narrow = ScanShape<256, 2, 1>;
  using Middle = ScanShape<256, 4, 1>;
  using Wide = ScanShape<256, 8, 2>;
  const bool clusters = device_generation("ngram_match") >= 9;
  if (scan_short_rows<kHybrid, Narrow, Middle, Wide>(a, 1, stream)) return;
  if (clusters && scan_short_rows<kHybrid, Narrow, Middle, Wide>(a, kMostCluster, stream)) return;
  // As many blocks for a row as fill the device once; many slots fill it twice and more.
  unsigned cluster = 1;
  while (clusters && cluster < kMostCluster && cluster * 2 * a.slots <= kFewBlocks) cluster *= 2;
  if (a.slots <= 264) return scan<kHybrid, Wide>(a, cluster, stream);
  scan<kHybrid, ScanShape<256, 4, 5>>(a, 1, stream);
}

// Entries are read and changed as words.
void require_alignment(const void* index) {
  if (reinterpret_cast<uintptr_t>(index) % sizeof(uint4) != 0) {
    throw std::invalid_argument("argument 'index': expected an address that is a multiple of 16; allocate a tensor of "
                                "its own for it");
  }
}

}  // namespace

void propose(const ProposeArgs& given, cudaStream_t stream) {
  if (given.slots == 0) return;
  require_alignment(given.index);
  ProposeArgs a = given;
  a.token_budget = min64(a.token_budget, int64_t{1} << 60);  // so that sums with it cannot overflow
  if (a.index_bytes == kNoIndexBytes) a.index = nullptr;
  if (a.hybrid) {
    find_drafts<true>(a, stream);
  } else {
    find_drafts<false>(a, stream);
  }
  settle(a, stream);
}

int64_t ngram_index_bytes(int64_t row_width, int min_size, int max_size) {
  return CompactLayout(row_width, min_size, max_size).row_bytes();
}

void ngram_index_update(const IndexUpdateArgs& a, cudaStream_t stream) {
  if (a.slots == 0 || a.index_bytes == kNoIndexBytes) return;
  require_alignment(a.index);
  // Few slots: several blocks each, for the histories that come at once.
  unsigned cluster = 1;
  if (device_generation("ngram_index_update") >= 9) {
    while (cluster < kMostCluster && cluster * 2 * a.slots <= kFewBlocks) cluster *= 2;
  }
  launch("ngram_index_update", stream, {blocks_for(a.slots * cluster, 1), kUpdateThreads, 0, cluster},
         ngram_index_update_kernel, a, index_layout(a));
}

void ngram_index_reset(const IndexResetArgs& a, cudaStream_t stream) {
  if (a.slots == 0) return;
  require_alignment(a.index);
  const int64_t vectors = a.index_bytes / static_cast<int64_t>(sizeof(uint4));
  launch("ngram_index_reset", stream, {blocks_for(vectors, kResetThreads, 1024), kResetThreads},
         ngram_index_reset_kernel, a);
}

}  // namespace specdec::cuda
