// apply_token_bitmask: a warp for 1,024 columns of a row, which writes what is forbidden and reads no logits.
// truncate_drafts: a warp a slot, a lane a draft.
#include "launch.cuh"
#include "ops.h"
#include "specdec/bitmask.h"
#include "specdec/row_floats.h"
#include "specdec_ops/apply_token_bitmask.h"
#include "specdec_ops/truncate_drafts.h"
#include "warp.cuh"

namespace specdec::cuda {

constexpr unsigned kBitmaskThreads = 256;
constexpr unsigned kBitmaskWarps = kBitmaskThreads / kWarp;
constexpr int64_t kBitmaskTile = 32 * kWarp;  // columns of a warp: each lane has a word of its mask

// Lane l's word says which of columns 32 l .. 32 l + 31 of the tile are forbidden. A warp stores to 32 neighbours at a
// time.
__device__ __forceinline__ void forbid(float* tile, uint32_t word, float forbidden) {
#pragma unroll
  for (int k = 0; k < 32; ++k) {
    if ((__shfl_sync(kAllLanes, word, k) >> lane_id() & 1u) != 0)
      tile[32 * k + static_cast<int>(lane_id())] = forbidden;
  }
}

// The same for pairs of columns, which begin at multiples of 4 bytes.
__device__ __forceinline__ void forbid(uint16_t* tile, uint32_t word, uint16_t forbidden) {
  const uint32_t both = uint32_t{forbidden} << 16 | forbidden;
  const unsigned half = lane_id() / 16, pair = lane_id() % 16;
#pragma unroll
  for (int k = 0; k < 16; ++k) {
    const uint32_t bits = __shfl_sync(kAllLanes, word, 2 * k + static_cast<int>(half)) >> (2 * pair) & 3u;
    uint16_t* const at = tile + 64 * k + 2 * lane_id();
    if (bits == 3) *reinterpret_cast<uint32_t*>(at) = both;
    if (bits == 1 || bits == 2) at[bits >> 1] = forbidden;
  }
}

template <class L>
__global__ void __launch_bounds__(kBitmaskThreads)
    apply_token_bitmask_kernel(const __grid_constant__ ApplyTokenBitmaskArgs a, typename L::Bits forbidden) {
  using Bits = typename L::Bits;
  wait_for_previous();
  let_next_start();
  const int64_t r = blockIdx.x, mask = mask_of_row(a.bitmask_rows, a.R_cap, a.U, r);
  if (mask < 0) return;
  Bits* const row = static_cast<Bits*>(a.logits) + r * a.V;
  const auto skew = static_cast<int64_t>(reinterpret_cast<uintptr_t>(row) % sizeof(uint32_t) / sizeof(Bits));
  const int64_t first = (int64_t{blockIdx.y} * kBitmaskWarps + warp_id()) * kBitmaskTile - skew;
  const int32_t* const words = a.bitmask + mask * a.Y;
  const int64_t own = first + 32 * lane_id();
  const uint32_t word = forbidden_tokens(words, mask_size(a.vocab_size, a.Y), a.first_token + own);
  forbid(row + first, word & columns_of_row(own, a.V), forbidden);
}

void apply_token_bitmask(const ApplyTokenBitmaskArgs& a, cudaStream_t stream) {
  if (a.R_cap == 0 || a.U == 0) return;  // no masks
  const dim3 grid(static_cast<unsigned>(a.R_cap), blocks_for(a.V + 1, kBitmaskWarps * kBitmaskTile));
  with_float_type(a.logits_type, [&](auto type) {
    using L = decltype(type);
    launch("apply_token_bitmask", stream, {grid, kBitmaskThreads}, apply_token_bitmask_kernel<L>, a,
           L::narrow(-INFINITY));
  });
}
SPECDEC_OP(apply_token_bitmask, kLimits)

constexpr unsigned kTruncateThreads = 128;
static_assert(served::kS <= kWarp + 1, "a lane for each draft");

__global__ void __launch_bounds__(kTruncateThreads)
    truncate_drafts_kernel(const __grid_constant__ TruncateDraftsArgs a) {
  wait_for_previous();
  let_next_start();
  const int64_t b = int64_t{blockIdx.x} * (kTruncateThreads / kWarp) + warp_id(), i = lane_id();
  if (b >= a.B) return;
  const int64_t token = i + 1 < a.S ? a.draft_tokens[b * a.S + i + 1] : 0;
  const int64_t mask = mask_of_row(a.bitmask_rows, a.R_cap, a.U, a.cu_seqlens_q_output[b] + i);
  bool refused = false;
  if (i < judged_drafts(a.seq_lens_this_time[b], a.seq_lens_encoder[b], a.S) && mask >= 0) {
    const int32_t* const words = a.bitmask + mask * a.Y;
    refused = !mask_allows(words, mask_size(a.vocab_size, a.Y), token);
  }
  const uint32_t votes = Team<kWarp>::ballot(refused);
  if (votes != 0 && i == 0) a.seq_lens_this_time[b] = __ffs(static_cast<int>(votes));
}

void truncate_drafts(const TruncateDraftsArgs& a, cudaStream_t stream) {
  if (a.B == 0 || a.U == 0) return;
  launch("truncate_drafts", stream, {blocks_for(a.B, kTruncateThreads / kWarp), kTruncateThreads},
         truncate_drafts_kernel, a);
}
SPECDEC_OP(truncate_drafts, kLimits)

}  // namespace specdec::cuda
