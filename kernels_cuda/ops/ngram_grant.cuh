// The second launch of ngram_match and hybrid_mtp_ngram: one block distributes the token budget in slot order.
#pragma once

#include "ngram_slot.cuh"

namespace specdec::cuda {

// A slot's share of the budget.
struct GrantSlot {
  bool prefill, decoding;
  int32_t slt;  // packed in a decode slot

  static __device__ __forceinline__ GrantSlot load(const NgramMatchArgs& a, int64_t b) {
    const bool prefill = a.seq_lens_encoder[b] > 0;
    return {prefill, !prefill && a.seq_lens_decoder[b] > 0, 0};
  }
  __device__ __forceinline__ bool active() const { return prefill || decoding; }
  __device__ __forceinline__ int32_t base() const { return packed_base(slt); }
  __device__ __forceinline__ int32_t drafts() const { return packed_drafts(slt); }
  // What it takes if all its drafts are granted.
  __device__ __forceinline__ int32_t tokens() const { return decoding ? base() + drafts() : prefill ? slt : 0; }
  __device__ __forceinline__ int64_t granted(const BudgetScan& scan) const {
    return decoding ? scan.grant(base(), drafts()) : tokens();
  }
};

// All slots one after the other: always right.
__device__ __forceinline__ void grant_serially(const NgramMatchArgs& a, int64_t active) {
  BudgetScan scan{a.token_budget, active};
  for (int64_t b = 0; b < a.B; ++b) {
    GrantSlot slot = GrantSlot::load(a, b);
    slot.slt = a.seq_lens_this_time[b];
    scan.pass(slot.active());
    const int64_t tokens = slot.granted(scan);
    scan.used += tokens;
    a.seq_lens_this_time[b] = static_cast<int32_t>(tokens);
  }
}

// The sum over the threads below, in `total` over all; at most 2^30. `parts`: one cell a warp, used once.
__device__ __forceinline__ int32_t block_sum_below(int32_t value, int32_t* parts, int32_t* total) {
  const int32_t here = warp_inclusive(value), warp_total = Team<kWarp>::get(here, kWarp - 1);
  if (blockDim.x == kWarp) {
    *total = warp_total;
    return here - value;
  }
  if (lane_id() == 0) parts[warp_id()] = warp_total;
  __syncthreads();
  const int32_t part = lane_id() < blockDim.x / kWarp ? parts[lane_id()] : 0;
  const int32_t parts_here = warp_inclusive(part);
  *total = Team<kWarp>::get(parts_here, kWarp - 1);
  return Team<kWarp>::get(parts_here - part, warp_id()) + here - value;
}

// Each slot gets the rest after all previous slots take what they want. That equals the rule if each takes at least the
// one token that `left` reserves; only a prefill slot without tokens breaks this. Sums have 32 bits: longer chunks also
// take the slow path.
constexpr int64_t kLongChunk = 1 << 15;

// One block. kEach: slots of a thread at most.
template <int kEach>
__device__ __forceinline__ void grant_tokens(const NgramMatchArgs& a) {
  static_assert(served::kM * kLongChunk < 1 << 30, "sums fit");
  __shared__ int32_t active_parts[kWarp], token_parts[kWarp];
  const int each = kEach == 1 ? 1 : static_cast<int>((a.B + blockDim.x - 1) / blockDim.x);
  const int64_t first = static_cast<int64_t>(threadIdx.x) * each;
  // The previous launch leaves these as they are, and has waited for its own predecessors.
  uint32_t prefill = 0, decoding = 0;  // bit i: slot i of this thread
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (i >= each || first + i >= a.B) continue;
    const GrantSlot it = GrantSlot::load(a, first + i);
    prefill |= static_cast<uint32_t>(it.prefill) << i;
    decoding |= static_cast<uint32_t>(it.decoding) << i;
  }
  int32_t all_active;
  const int32_t active = __popc(prefill | decoding);
  const int32_t active_below = block_sum_below(active, active_parts, &all_active);
  wait_for_previous();
  let_next_start();
  int32_t slt[kEach] = {};
  int64_t tokens = 0;
  bool unusual = false;
  const auto slot = [&](int i) { return GrantSlot{(prefill >> i & 1) != 0, (decoding >> i & 1) != 0, slt[i]}; };
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    slt[i] = ((prefill | decoding) >> i & 1) != 0 ? a.seq_lens_this_time[first + i] : 0;
    tokens += slot(i).tokens();
    unusual |= slot(i).prefill && (slt[i] < 1 || slt[i] > kLongChunk);
  }
  int32_t all_tokens;
  const int32_t tokens_below = block_sum_below(unusual ? 0 : static_cast<int32_t>(tokens), token_parts, &all_tokens);
  BudgetScan scan{a.token_budget, all_active - active_below};
  scan.used = tokens_below;
  if (blockDim.x == kWarp ? __any_sync(kAllLanes, unusual) : __syncthreads_or(unusual)) {
    if (threadIdx.x == 0) grant_serially(a, all_active);
  } else {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t b = first + i;
      if (i >= each || b >= a.B) break;
      scan.pass(slot(i).active());
      const int64_t granted = slot(i).granted(scan);
      scan.used += slot(i).tokens();
      if (!slot(i).prefill) a.seq_lens_this_time[b] = static_cast<int32_t>(granted);
    }
  }
  if (!a.pad_to_max) return;
  __syncthreads();
  // One warp a slot.
  for (int64_t b = warp_id(); b < a.B; b += blockDim.x / kWarp) {
    if (a.seq_lens_encoder[b] > 0 || a.seq_lens_decoder[b] <= 0) continue;
    const int64_t valid = a.seq_lens_this_time[b];
    int64_t* row = a.draft_tokens + b * a.S;
    const int64_t last = row[valid - 1];
    for (int64_t i = valid + lane_id(); i < a.S; i += kWarp) row[i] = last;
    __syncwarp();
    if (lane_id() == 0) a.seq_lens_this_time[b] = static_cast<int32_t>(a.S);
  }
}

}  // namespace specdec::cuda
