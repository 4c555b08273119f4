#include <cstdint>

#include "launch.cuh"
#include "ngram_grant.cuh"
#include "ngram_scan.cuh"
#include "specdec_ops/hybrid_mtp_ngram.h"
#include "specdec_ops/ngram_index_reset.h"
#include "specdec_ops/ngram_index_update.h"

namespace specdec::cuda {
namespace {

constexpr unsigned kResetThreads = 256;

// As many blocks as fill the device once, and a little more.
int64_t few_blocks() { return int64_t{device_sms("ngram_match")} * 5 / 4; }

// At most kEach slots per thread.
template <int kThreads, int kEach>
__global__ __launch_bounds__(kThreads, 1) void ngram_grant_kernel(NgramMatchArgs a) {
  grant_tokens<kEach>(a);
}

template <int kThreads, int kEach>
void grant(const NgramMatchArgs& a, cudaStream_t stream) {
  const unsigned warps = blocks_for(a.B, int64_t{kWarp} * kEach, kThreads / kWarp);
  launch("ngram_match", stream, {1, warps * kWarp}, ngram_grant_kernel<kThreads, kEach>, a);
}

// A warp per slot.
__global__ __launch_bounds__(kResetThreads) void ngram_index_reset_kernel(NgramIndexResetArgs a) {
  wait_for_previous();
  let_next_start();
  const int64_t b = int64_t{blockIdx.x} * (kResetThreads / kWarp) + warp_id();
  if (b >= a.M || !a.reset_slots[b]) return;
  for (int64_t i = lane_id(); i < a.X; i += kWarp) a.index[b * a.X + i] = 0;
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
  const int64_t fit = Shape::kThreads > 256 ? device_sms("ngram_match") : few_blocks();
  if (blocks <= most && (blocks == 1 || blocks * a.B <= fit)) {
    scan_rows<kHybrid, Shape>(a, static_cast<unsigned>(blocks), stream);
    return true;
  }
  if constexpr (sizeof...(Others) > 0) return scan_short_rows<kHybrid, Others...>(a, most, stream);
  return false;
}

template <bool kHybrid>
void find_drafts(const NgramMatchArgs& a, cudaStream_t stream) {
  using Narrow = ScanShape<256, 2, 1>;
  using Middle = ScanShape<256, 4, 1>;
  using Wide = ScanShape<256, 8, 2>;
  const bool clusters = compute_capability_major("ngram_match") >= 9;
  if (scan_short_rows<kHybrid, Narrow, Middle, Wide>(a, 1, stream)) return;
  using Many = ScanShape<512, 3, 1>;
  using Most = ScanShape<512, 5, 1>;
  if (clusters && scan_short_rows<kHybrid, Narrow, Many, Wide, Most>(a, kMaxCluster, stream)) return;
  // As many blocks for a row as fill the device once; many slots fill it twice and more.
  const int64_t few = few_blocks();
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
  find_drafts<kHybrid>(a, stream);
  a.B <= 1024 ? grant<1024, 1>(a, stream) : grant<1024, served::kM / 1024>(a, stream);
}

}  // namespace

void ngram_match(const NgramMatchArgs& a, cudaStream_t stream) { propose<false>(a, stream); }
SPECDEC_OP(ngram_match, kNgramLimits)

void hybrid_mtp_ngram(const HybridMtpNgramArgs& a, cudaStream_t stream) { propose<true>(a, stream); }
SPECDEC_OP(hybrid_mtp_ngram, kNgramLimits)

// Histories are searched: nothing is kept in an index.
void ngram_index_update(const NgramIndexUpdateArgs&, cudaStream_t) {}
SPECDEC_OP(ngram_index_update, kLimits)

void ngram_index_reset(const NgramIndexResetArgs& a, cudaStream_t stream) {
  launch("ngram_index_reset", stream, {blocks_for(a.M, kResetThreads / kWarp), kResetThreads}, ngram_index_reset_kernel,
         a);
}
SPECDEC_OP(ngram_index_reset, kLimits)

}  // namespace specdec::cuda
