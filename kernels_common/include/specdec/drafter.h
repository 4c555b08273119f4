// Blocks of tokens and masks of a drafter, and drafts that it doubts (contract, section 11).
#pragma once

#include "specdec/integers.h"
#include "specdec/platform.h"

namespace specdec {

// A slot's block: `tokens`, then masks.
struct BlockShare {
  int64_t fed;  // tokens that the slot was fed
  int64_t tokens, rows;
};

SPECDEC_HD BlockShare block_share(int32_t start, int32_t end, int64_t capacity, int64_t masks, bool anchor_only) {
  const int64_t fed = clamp64(int64_t{end} - start, 0, capacity);
  if (fed == 0) return {0, 0, 0};
  const int64_t tokens = anchor_only ? 1 : fed;
  return {fed, tokens, tokens + masks};
}

// Where the token of row i of a block stands; -1: it is masked.
SPECDEC_HD int64_t block_source(int64_t i, int64_t tokens, int32_t start, int32_t end, int64_t capacity,
                                bool anchor_only) {
  const int64_t source = anchor_only ? int64_t{end} - 1 : start + i;
  return i < tokens && source >= 0 && source < capacity ? source : -1;
}

// Position of a block's first row.
SPECDEC_HD int32_t block_position(int32_t dec, int64_t fed, bool anchor_only) {
  return static_cast<int32_t>(min64(max64(dec, 0) + (anchor_only ? fed : 0), kInt32Max));
}

// seq_lens_this_time of a slot, of whose drafts `confidence` has `count`.
template <typename Confidence>
SPECDEC_HD int32_t trusted_tokens(int32_t slt, int32_t enc, Confidence& confidence, int64_t count, float least) {
  if (enc > 0) return slt;
  const int64_t drafts = min64(int64_t{slt} - 1, count);
  float p = 1.0f;
  for (int64_t i = 0; i < drafts; ++i) {
    p = mul_rn(p, confidence[i]);
    if (p < least) return static_cast<int32_t>(i + 1);
  }
  return slt;
}

}  // namespace specdec
