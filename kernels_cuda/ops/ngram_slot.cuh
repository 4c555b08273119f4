// One slot of ngram_match and hybrid_mtp_ngram: what it has, may get, and its text.
#pragma once

#include "ops.h"
#include "specdec/ngram.h"
#include "warp.cuh"

namespace specdec::cuda {

// A decode slot between the launch that finds drafts and the one that grants them, in seq_lens_this_time; both are at
// most S <= kMostDraftWidth.
__device__ __forceinline__ int32_t pack_proposal(int64_t base, int64_t drafts) {
  return static_cast<int32_t>(base << 16 | drafts);
}
__device__ __forceinline__ int32_t packed_base(int32_t packed) { return packed >> 16; }
__device__ __forceinline__ int32_t packed_drafts(int32_t packed) { return packed & 0xFFFF; }

struct ProposeSlot {
  int64_t base, wanted;
  int64_t prompt_end, end;  // of the history
  int64_t text_end;
  const int64_t* row;
  int64_t* drafts;  // the row of draft_tokens

  // False if the slot does not decode.
  template <bool kHybrid>
  __device__ __forceinline__ bool load(const ProposeArgs& a, int64_t b) {
    const int32_t enc = a.seq_lens_encoder[b], dec = a.seq_lens_decoder[b];
    const int64_t prompt_len = a.prompt_lens[b], step = a.step_idx[b], limit = a.max_dec_len[b];
    const int32_t given = kHybrid ? a.seq_lens_this_time[b] : a.draft_token_num[b];
    base = kHybrid ? hybrid_base(given, a.draft_width) : 1;
    wanted = kHybrid ? hybrid_wanted(base, a.draft_width, limit, step)
                     : ngram_wanted(given, a.draft_width, limit, step);
    const History history = history_bounds(a.row_width, prompt_len, step);
    prompt_end = history.prompt_end;
    end = history.end;
    text_end = end + base - 1;
    row = a.token_ids_all + b * a.row_width;
    drafts = a.draft_tokens + b * a.draft_width;
    return enc <= 0 && dec > 0;
  }

  __device__ __forceinline__ SlotText text() const { return {row, drafts + 1, end}; }

  __device__ __forceinline__ NgramSizes sizes(const ProposeArgs& a) const {
    const auto policy = static_cast<MatchPolicy>(a.policy);
    return NgramSizes(policy, wanted > 0 ? a.max_size : 0, a.min_size, prompt_end, text_end);
  }

  // Drafts that a match gives.
  __device__ __forceinline__ int64_t count(const NgramSizes& sizes, const NgramMatch& match) const {
    return match.size == 0 ? 0 : min64(wanted, sizes.haystack_stop(match.after) - match.after);
  }

  // One warp: append what follows the match. Returns the number of drafts.
  template <typename Text>
  __device__ __forceinline__ int64_t append(const NgramSizes& sizes, const Text& text, const NgramMatch& match) const {
    const int64_t drafted = count(sizes, match);
    if (lane_id() < drafted) drafts[base + lane_id()] = text[match.after + lane_id()];
    return drafted;
  }
};

}  // namespace specdec::cuda
