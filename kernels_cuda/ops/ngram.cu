#include <cstdint>
#include <stdexcept>
#include <string>

#include "launch.cuh"
#include "ngram_grant.cuh"
#include "ngram_lookup.cuh"
#include "ngram_scan.cuh"
#include "ngram_workspace.h"
#include "specdec_ops/hybrid_mtp_ngram.h"

namespace specdec::cuda {
namespace {

// As many blocks as fill the device once, and a little more.
int64_t few_blocks(const char* op) { return int64_t{device_sms(op)} * 5 / 4; }

void require_alignment(const void* index) {
  if (reinterpret_cast<uintptr_t>(index) % kIndexAlignment == 0) return;
  throw std::invalid_argument("argument 'index': expected an address that is a multiple of " +
                              std::to_string(kIndexAlignment) + "; allocate a tensor of its own for it");
}

template <typename Args>
CompactLayout index_layout(const Args& a) {
  return CompactLayout(a.L, a.min_ngram_size, a.max_ngram_size);
}

// Rows of a nonempty index have the layout's size and aligned addresses.
template <typename Args>
bool keeps_index(const Args& a) {
  if (a.index == nullptr || a.X == kNoIndexBytes) return false;
  const int64_t row_bytes = index_layout(a).row_bytes();
  if (a.X != row_bytes) {
    throw std::invalid_argument("argument 'index': expected rows of " + std::to_string(row_bytes) + " bytes, got " +
                                std::to_string(a.X) + "; allocate what the backend's workspace() says");
  }
  require_alignment(a.index);
  return true;
}

// Block 0 grants, at most kEach slots per thread; with an index, the other blocks' warps enter their slots' accepted
// tokens.
template <bool kIndexed, int kThreads, int kEach>
__global__ __launch_bounds__(kThreads, 1) void ngram_settle_kernel(NgramMatchArgs a, CompactLayout layout) {
  if (!kIndexed || blockIdx.x == 0) {
    grant_tokens<kEach>(a);
  } else {
    __shared__ int64_t staged[kThreads / kWarp][WarpEntries::kTokens];
    const int64_t b = int64_t{blockIdx.x - 1} * (blockDim.x / kWarp) + warp_id();
    if (b < a.B) grow_index(a, layout, b, staged[warp_id()]);
  }
}

template <bool kIndexed, int kThreads, int kEach>
void settle(const NgramMatchArgs& a, cudaStream_t stream) {
  const unsigned warps = blocks_for(a.B, int64_t{kWarp} * kEach, kThreads / kWarp);
  const unsigned growing = kIndexed ? blocks_for(a.B, warps) : 0;
  launch("ngram_match", stream, {1 + growing, warps * kWarp}, ngram_settle_kernel<kIndexed, kThreads, kEach>, a,
         index_layout(a));
}

// With an index in smaller blocks, which fit beside those of the look-up.
void settle(const NgramMatchArgs& a, cudaStream_t stream) {
  if (a.index == nullptr) {
    a.B <= 1024 ? settle<false, 1024, 1>(a, stream) : settle<false, 1024, served::kM / 1024>(a, stream);
  } else if (a.B <= 256) {
    settle<true, 256, 1>(a, stream);
  } else {
    a.B <= 512 ? settle<true, 256, 2>(a, stream) : settle<true, 512, served::kM / 512>(a, stream);
  }
}

// `cluster`: blocks that share a row.
template <bool kHybrid, typename Shape>
void scan(const NgramMatchArgs& a, unsigned cluster, cudaStream_t stream) {
  launch("ngram_match", stream, {blocks_for(a.B * cluster, 1), Shape::kThreads, 0, cluster},
         ngram_scan_kernel<kHybrid, Shape>, a);
}

template <bool kHybrid, typename Shape>
void scan_rows(const NgramMatchArgs& a, unsigned cluster, cudaStream_t stream) {
  launch("ngram_match", stream, {blocks_for(a.B * cluster, 1), Shape::kThreads, 0, cluster},
         ngram_short_rows_kernel<kHybrid, Shape>, a);
}

// Short rows: one block each if possible, without communication; else the first shape in which `most` blocks hold a
// row, unless too many to read all rows at once. False: neither. Two blocks of 512 threads on one multiprocessor take
// longer than half as many threads.
template <bool kHybrid, typename Shape, typename... Others>
bool scan_short_rows(const NgramMatchArgs& a, unsigned most, cudaStream_t stream) {
  // A row on an odd address takes a token more.
  const int64_t blocks = a.L / (2 * Shape::kPairs) + 1;
  const int64_t fit = Shape::kThreads > 256 ? device_sms("ngram_match") : few_blocks("ngram_match");
  if (blocks <= most && (blocks == 1 || blocks * a.B <= fit)) {
    scan_rows<kHybrid, Shape>(a, static_cast<unsigned>(blocks), stream);
    return true;
  }
  if constexpr (sizeof...(Others) > 0) return scan_short_rows<kHybrid, Others...>(a, most, stream);
  return false;
}

template <bool kHybrid>
void find_drafts(const NgramMatchArgs& a, cudaStream_t stream) {
  if (a.index != nullptr) {
    launch("ngram_match", stream, {blocks_for(a.B, kLookupWarps), kLookupWarps * kWarp}, ngram_lookup_kernel<kHybrid>,
           a, index_layout(a));
    return;
  }
  using Narrow = ScanShape<256, 2, 1>;
  using Middle = ScanShape<256, 4, 1>;
  using Wide = ScanShape<256, 8, 2>;
  const bool clusters = compute_capability_major("ngram_match") >= 9;
  if (scan_short_rows<kHybrid, Narrow, Middle, Wide>(a, 1, stream)) return;
  using Many = ScanShape<512, 3, 1>;
  using Most = ScanShape<512, 5, 1>;
  if (clusters && scan_short_rows<kHybrid, Narrow, Many, Wide, Most>(a, kMaxCluster, stream)) return;
  // As many blocks for a row as fill the device once; many slots fill it twice and more.
  const int64_t few = few_blocks("ngram_match");
  unsigned cluster = 1;
  while (clusters && cluster < kMaxCluster && cluster * 2 * a.B <= few) cluster *= 2;
  if (a.B <= 2 * device_sms("ngram_match")) return scan<kHybrid, Wide>(a, cluster, stream);
  scan<kHybrid, ScanShape<256, 4, 5>>(a, 1, stream);
}

constexpr Limit kNgramLimits[] = {{"M", served::kM}, {"S", served::kS}, {"L", served::kL}, {"P", served::kL}};

template <bool kHybrid>
void propose(const NgramMatchArgs& given, cudaStream_t stream) {
  if (given.B == 0) return;
  NgramMatchArgs a = given;
  a.token_budget = min64(a.token_budget, int64_t{1} << 60);  // so that sums with it cannot overflow
  if (!keeps_index(a) || a.skip_last || a.pre_ids != nullptr) a.index = nullptr;
  find_drafts<kHybrid>(a, stream);
  settle(a, stream);
}

}  // namespace

void ngram_match(const NgramMatchArgs& a, cudaStream_t stream) { propose<false>(a, stream); }
SPECDEC_OP(ngram_match, kNgramLimits)

void hybrid_mtp_ngram(const HybridMtpNgramArgs& a, cudaStream_t stream) { propose<true>(a, stream); }
SPECDEC_OP(hybrid_mtp_ngram, kNgramLimits)

void ngram_index_update(const NgramIndexUpdateArgs& a, cudaStream_t stream) {
  if (!keeps_index(a)) return;
  // Few slots: several blocks each, for the histories that come at once.
  unsigned cluster = 1;
  if (compute_capability_major("ngram_index_update") >= 9) {
    const int64_t few = few_blocks("ngram_index_update");
    while (cluster < kMaxCluster && cluster * 2 * a.M <= few) cluster *= 2;
  }
  launch("ngram_index_update", stream, {blocks_for(a.M * cluster, 1), kUpdateThreads, 0, cluster},
         ngram_index_update_kernel, a, index_layout(a));
}
SPECDEC_OP(ngram_index_update, kLimits)

void ngram_index_reset(const NgramIndexResetArgs& a, cudaStream_t stream) {
  require_alignment(a.index);
  const int64_t vectors = a.X / static_cast<int64_t>(sizeof(uint4));
  launch("ngram_index_reset", stream, {blocks_for(vectors, kResetThreads, 1024), kResetThreads},
         ngram_index_reset_kernel, a);
}
SPECDEC_OP(ngram_index_reset, kLimits)

}  // namespace specdec::cuda
