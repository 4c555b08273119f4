// One slot of ngram_match and hybrid_mtp_ngram: what it has, may get, and its text.
#pragma once

#include "ops.h"
#include "specdec/ngram.h"
#include "specdec_ops/ngram_match.h"
#include "warp.cuh"

namespace specdec::cuda {

static_assert(served::kS <= kMaxPacked, "base tokens and drafts of a slot are packed");
static_assert(served::kS <= kWarp, "a lane has a draft");

struct ProposeSlot {
  int64_t base, wanted;
  ProposeText at;
  int64_t* drafts;  // the row of draft_tokens

  // False if the slot does not decode.
  template <bool kHybrid>
  __device__ __forceinline__ bool load(const NgramMatchArgs& a, int64_t b) {
    const int32_t enc = a.seq_lens_encoder[b], dec = a.seq_lens_decoder[b];
    const int64_t prompt_len = a.prompt_lens[b], step = a.step_idx[b], limit = a.max_dec_len[b];
    const int32_t wish = a.draft_token_num[b];
    base = kHybrid ? hybrid_base(a.seq_lens_this_time[b], a.S) : 1;
    wanted = ngram_wanted(base, a.use_draft_token_num, wish, a.S, limit, step, a.pre_ids != nullptr);
    at = propose_text(a, b, base, prompt_len, step);
    drafts = a.draft_tokens + b * a.S;
    return enc <= 0 && dec > 0;
  }

  __device__ __forceinline__ SlotText text() const { return {at.row, at.tail, at.end}; }

  __device__ __forceinline__ NgramSizes sizes(const NgramMatchArgs& a) const {
    return NgramSizes(a.match_policy, wanted > 0 ? a.max_ngram_size : 0, a.min_ngram_size, at.prompt_end, at.text_end,
                      a.skip_last);
  }

  // One warp: append what follows the match. Returns the number of drafts.
  template <typename Text>
  __device__ __forceinline__ int64_t append(const NgramMatchArgs& a, const NgramSizes& sizes, const Text& text,
                                            const NgramMatch& match) const {
    const int64_t count = ngram_draft_count(sizes, match, wanted, a.continue_cycles);
    const int64_t period = ngram_period(sizes, match);
    const unsigned i = count > period ? lane_id() % static_cast<unsigned>(period) : lane_id();
    if (lane_id() < count) drafts[base + lane_id()] = text[match.after + i];
    return count;
  }
};

}  // namespace specdec::cuda
