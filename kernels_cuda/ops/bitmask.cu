// apply_token_bitmask: a thread has vectors of a row, and writes the forbidden logits. truncate_drafts: a warp per
// slot, a lane per draft.
#include <type_traits>

#include "launch.cuh"
#include "ops.h"
#include "specdec/bitmask.h"
#include "specdec/row_floats.h"
#include "specdec_ops/apply_token_bitmask.h"
#include "specdec_ops/truncate_drafts.h"
#include "warp.cuh"

namespace specdec::cuda {

constexpr unsigned kBitmaskThreads = 256;
constexpr int64_t kBitmaskBlocks = 4;  // of a multiprocessor: from more on, a thread takes more vectors
constexpr int kGroup = 32;  // columns, whose forbidden ones are the bits of a word; in sectors of their own
constexpr int kMinForbidden = 8, kMaxAllowed = 2;  // columns of a group: fewer, or no more, and it is written in part

// 16 bytes of a row.
template <class L>
struct MaskedVector {
  using Bits = typename L::Bits;
  static constexpr int kColumns = sizeof(uint4) / sizeof(Bits);
  static constexpr unsigned kLanes = kGroup / kColumns;  // of a group
  static constexpr uint32_t kAll = (1u << kColumns) - 1u;

  // x, with the forbidden value where `bits` has a 1.
  static __device__ __forceinline__ uint4 masked(const uint4& x, uint32_t bits, uint32_t forbidden) {
    return {part(x.x, bits, 0, forbidden), part(x.y, bits, 1, forbidden), part(x.z, bits, 2, forbidden),
            part(x.w, bits, 3, forbidden)};
  }

 private:
  static __device__ __forceinline__ uint32_t part(uint32_t x, uint32_t bits, int i, uint32_t forbidden) {
    if constexpr (kColumns == 4) return (bits >> i & 1u) != 0 ? forbidden : x;
    const uint32_t ones = ((bits >> 2 * i & 1u) != 0 ? 0xFFFFu : 0) | ((bits >> 2 * i & 2u) != 0 ? 0xFFFF0000u : 0);
    return (x & ~ones) | (forbidden & ones);
  }
};

// Groups with few allowed or few forbidden tokens are written in part. Others are read and rewritten whole: partial
// writes of most sectors cost twice as much (H200). Data beyond L2 is written faster with evict-first.
template <class L, unsigned kEach, bool kFitsInCache>
__global__ void __launch_bounds__(kBitmaskThreads)
    apply_token_bitmask_kernel(const __grid_constant__ ApplyTokenBitmaskArgs a, typename L::Bits forbidden, int size) {
  using Bits = typename L::Bits;
  using Vector = MaskedVector<L>;
  constexpr unsigned kGroups = kEach * kWarp / Vector::kLanes;  // of a warp
  static_assert(kGroups <= kWarp, "a lane for each word");
  wait_for_previous();
  let_next_start();
  const int64_t r = blockIdx.x;
  const int64_t mask = mask_of_row(a.bitmask_rows, a.R_cap, a.U, r);
  Bits* const row = static_cast<Bits*>(a.logits) + r * a.V;
  const auto skew = static_cast<int>(reinterpret_cast<uintptr_t>(row) % (kGroup * sizeof(Bits)) / sizeof(Bits));
  const unsigned warp = blockIdx.y * (kBitmaskThreads / kWarp) + warp_id();
  const int first = static_cast<int>(warp * kGroups) * kGroup - skew;
  const int own = first + static_cast<int>(lane_id() % kGroups) * kGroup, columns = static_cast<int>(a.V);
  const auto word_of = [&](int64_t number) {
    const int32_t* const words = a.bitmask + number * a.Y;
    return forbidden_tokens(words, size, a.first_token + own);
  };
  const int64_t guess = min64(r, a.U - 1);  // as a rule each row has a mask of its own
  uint32_t word = word_of(guess);
  if (mask < 0) return;
  if (mask != guess) word = word_of(mask);
  word &= columns_of_row(own, columns);
  const int count = __popc(word);
  const uint32_t wholes = __ballot_sync(
      kAllLanes, count >= kMinForbidden && count < kGroup - kMaxAllowed && own >= 0 && own + kGroup <= columns);
  uint32_t all;
  if constexpr (sizeof(Bits) == 4) {
    all = __float_as_uint(forbidden);
  } else {
    all = uint32_t{forbidden} << 16 | forbidden;
  }
  uint4* const cells = reinterpret_cast<uint4*>(row + first) + lane_id();
  const auto group = [](unsigned e) { return (e * kWarp + lane_id()) / Vector::kLanes; };
  uint32_t bits[kEach];
  uint4 kept[kEach];
#pragma unroll
  for (unsigned e = 0; e < kEach; ++e) {
    const uint32_t of_group = __shfl_sync(kAllLanes, word, static_cast<int>(group(e)));
    bits[e] = of_group >> lane_id() % Vector::kLanes * Vector::kColumns & Vector::kAll;
    if ((wholes >> group(e) & 1u) != 0 && bits[e] != Vector::kAll) kept[e] = cells[e * kWarp];
  }
#pragma unroll
  for (unsigned e = 0; e < kEach; ++e) {
    if (bits[e] == Vector::kAll || (wholes >> group(e) & 1u) != 0) {
      const uint4 x = bits[e] == Vector::kAll ? uint4{all, all, all, all} : Vector::masked(kept[e], bits[e], all);
      if constexpr (kFitsInCache)
        cells[e * kWarp] = x;
      else
        __stcs(&cells[e * kWarp], x);
    } else if (bits[e] != 0) {
#pragma unroll
      for (int i = 0; i < Vector::kColumns; ++i) {
        if ((bits[e] >> i & 1u) != 0) reinterpret_cast<Bits*>(&cells[e * kWarp])[i] = forbidden;
      }
    }
  }
}

namespace {

template <unsigned kVectors>
using Each = std::integral_constant<unsigned, kVectors>;

// Blocks of a row, if a thread has so many columns.
unsigned bitmask_parts(int64_t width, unsigned columns) {
  return blocks_for(width + kGroup - 1, int64_t{kBitmaskThreads} * columns);
}

}  // namespace

void apply_token_bitmask(const ApplyTokenBitmaskArgs& a, cudaStream_t stream) {
  constexpr const char* kOp = "apply_token_bitmask";
  if (a.R_cap == 0 || a.U == 0) return;  // no masks
  with_float_type(a.logits_type, [&](auto type) {
    using L = decltype(type);
    constexpr unsigned kMax = MaskedVector<L>::kLanes;  // vectors of a thread: a lane for each word of its warp
    const auto launch_each = [&](auto each, auto fits) {
      constexpr unsigned kEach = decltype(each)::value;
      const unsigned parts = bitmask_parts(a.V, kEach * MaskedVector<L>::kColumns);
      launch(kOp, stream, {dim3(static_cast<unsigned>(a.R_cap), parts), kBitmaskThreads},
             apply_token_bitmask_kernel<L, kEach, decltype(fits)::value>, a, L::narrow(-INFINITY),
             static_cast<int>(mask_size(a.vocab_size, a.Y)));
    };
    const auto enough = [&](unsigned each) {
      return a.R_cap * bitmask_parts(a.V, each * MaskedVector<L>::kColumns) <= device_sms(kOp) * kBitmaskBlocks;
    };
    const auto bytes = a.R_cap * a.V * static_cast<int64_t>(sizeof(typename L::Bits));
    if (bytes > device_attribute<cudaDevAttrL2CacheSize>(kOp)) return launch_each(Each<kMax>{}, std::false_type{});
    if (enough(2)) return launch_each(Each<2>{}, std::true_type{});
    if (kMax > 4 && enough(4)) return launch_each(Each<4>{}, std::true_type{});
    launch_each(Each<kMax>{}, std::true_type{});
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
