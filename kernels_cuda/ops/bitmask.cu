// apply_token_bitmask: a warp per 1,024 columns of a row. It writes forbidden logits, and reads only lines that it
// rewrites whole. truncate_drafts: a warp per slot, a lane per draft.
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
constexpr int kBitmaskTile = 32 * kWarp;  // columns of a warp: each lane has a word of its mask
constexpr int kLine = 4 * kWarp;  // bytes
constexpr int kShareWritten = 4;  // a line is written whole if one of so many of its columns is forbidden

// All ones for the forbidden columns of a lane's four bytes of line k. Lane l's `word` has the forbidden columns 32 l
// .. 32 l + 31 of the tile.
template <typename Bits>
__device__ __forceinline__ uint32_t forbidden_bytes(uint32_t word, int k) {
  if constexpr (sizeof(Bits) == 4) {
    return (__shfl_sync(kAllLanes, word, k) >> lane_id() & 1u) != 0 ? 0xFFFFFFFFu : 0;
  } else {
    const uint32_t half = __shfl_sync(kAllLanes, word, 2 * k + static_cast<int>(lane_id() / 16));
    const uint32_t bits = half >> 2 * (lane_id() % 16);
    return ((bits & 1u) != 0 ? 0xFFFFu : 0) | ((bits & 2u) != 0 ? 0xFFFF0000u : 0);
  }
}

// Measured on an H100: if many columns of a line are forbidden, partial writes of sectors cost more than reading and
// rewriting them; data beyond L2 is written faster with evict-first.
template <class L, bool kFitsInCache>
__global__ void __launch_bounds__(kBitmaskThreads)
    apply_token_bitmask_kernel(const __grid_constant__ ApplyTokenBitmaskArgs a, typename L::Bits forbidden,
                               unsigned tiles) {
  using Bits = typename L::Bits;
  constexpr int kColumns = kLine / sizeof(Bits), kLines = kBitmaskTile / kColumns, kWords = kColumns / 32;
  wait_for_previous();
  let_next_start();
  const int64_t r = blockIdx.x / tiles, mask = mask_of_row(a.bitmask_rows, a.R_cap, a.U, r);
  if (mask < 0) return;
  Bits* const row = static_cast<Bits*>(a.logits) + r * a.V;
  const auto skew = static_cast<int64_t>(reinterpret_cast<uintptr_t>(row) % sizeof(uint32_t) / sizeof(Bits));
  const int64_t first = (int64_t{blockIdx.x % tiles} * kBitmaskWarps + warp_id()) * kBitmaskTile - skew;
  const int32_t* const words = a.bitmask + mask * a.Y;
  const int64_t own = first + 32 * lane_id();
  const uint32_t word =
      forbidden_tokens(words, mask_size(a.vocab_size, a.Y), a.first_token + own) & columns_of_row(own, a.V);
  uint32_t all;
  if constexpr (sizeof(Bits) == 4) {
    all = __float_as_uint(forbidden);
  } else {
    all = uint32_t{forbidden} << 16 | forbidden;
  }
  const auto cell = [&](int k) { return reinterpret_cast<uint32_t*>(row + first + k * kColumns) + lane_id(); };
  // Of each word, whether its line is written whole; whether something of it stays.
  const int count = __popc(word) + (kWords == 2 ? __popc(__shfl_xor_sync(kAllLanes, word, 1)) : 0);
  const int64_t line = first + static_cast<int>(lane_id()) / kWords * kColumns;
  const bool whole = kShareWritten * count >= kColumns && line >= 0 && line + kColumns <= a.V;
  const uint32_t wholes = __ballot_sync(kAllLanes, whole), mixed = __ballot_sync(kAllLanes, whole && count < kColumns);

  uint32_t kept[kLines];
  if (mixed != 0) {
#pragma unroll
    for (int k = 0; k < kLines; ++k) {
      if ((mixed >> k * kWords & 1u) != 0 && ~forbidden_bytes<Bits>(word, k) != 0) kept[k] = *cell(k);
    }
  }
#pragma unroll
  for (int k = 0; k < kLines; ++k) {
    const uint32_t bytes = forbidden_bytes<Bits>(word, k);
    if ((wholes >> k * kWords & 1u) != 0 || ~bytes == 0) {
      const uint32_t value = ~bytes == 0 ? all : (kept[k] & ~bytes) | (all & bytes);
      if constexpr (kFitsInCache)
        *cell(k) = value;
      else
        __stcs(cell(k), value);
    } else if (bytes != 0) {
      reinterpret_cast<Bits*>(cell(k))[(bytes & 1u) != 0 ? 0 : 1] = forbidden;
    }
  }
}

void apply_token_bitmask(const ApplyTokenBitmaskArgs& a, cudaStream_t stream) {
  constexpr const char* kOp = "apply_token_bitmask";
  if (a.R_cap == 0 || a.U == 0) return;  // no masks
  const unsigned tiles = blocks_for(a.V + 1, kBitmaskWarps * kBitmaskTile);
  with_float_type(a.logits_type, [&](auto type) {
    using L = decltype(type);
    const auto bytes = a.R_cap * a.V * static_cast<int64_t>(sizeof(typename L::Bits));
    const bool fits = bytes <= device_attribute<cudaDevAttrL2CacheSize>(kOp);
    launch(kOp, stream, {static_cast<unsigned>(a.R_cap) * tiles, kBitmaskThreads},
           fits ? apply_token_bitmask_kernel<L, true> : apply_token_bitmask_kernel<L, false>, a, L::narrow(-INFINITY),
           tiles);
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
  if (i < verified_drafts(a.seq_lens_this_time[b], a.seq_lens_encoder[b], a.S) && mask >= 0) {
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
