// apply_token_bitmask, truncate_drafts; map_draft_logits, truncate_by_confidence.
#include <cmath>

#include "../op.h"
#include "specdec/bitmask.h"
#include "specdec/drafter.h"
#include "specdec/row_floats.h"
#include "specdec_ops/apply_token_bitmask.h"
#include "specdec_ops/map_draft_logits.h"
#include "specdec_ops/truncate_by_confidence.h"
#include "specdec_ops/truncate_drafts.h"

namespace specdec::cpu {
namespace {

constexpr int64_t kBits = 32;  // of a mask's word

// Of the columns [0, count) at x, those whose bits are set.
template <typename Bits>
void write_set(Bits* x, int64_t count, uint32_t bits, Bits value) {
  if (bits == ~0u) {
    std::fill_n(x, kBits, value);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    if ((bits >> i & 1u) != 0) x[i] = value;
  }
}

}  // namespace

void apply_token_bitmask(const ApplyTokenBitmaskArgs& a, Context threads) {
  const int64_t size = mask_size(a.vocab_size, a.Y);
  with_float_type(a.logits_type, [&](auto type) {
    using L = decltype(type);
    const auto forbidden = L::narrow(-INFINITY);
    each(threads, a.R_cap, a.V / 4, [&](int64_t r) {
      const int64_t mask = mask_of_row(a.bitmask_rows, a.R_cap, a.U, r);
      if (mask < 0) return;
      const int32_t* words = a.bitmask + mask * a.Y;
      auto* row = static_cast<typename L::Bits*>(a.logits) + r * a.V;
      for (int64_t at = 0; at < a.V; at += kBits) {
        const uint32_t bits = forbidden_tokens(words, size, a.first_token + at) & columns_of_row(at, a.V);
        if (bits != 0) write_set(row + at, min64(kBits, a.V - at), bits, forbidden);
      }
    });
  });
}
SPECDEC_OP(apply_token_bitmask, kUnlimited)

void truncate_drafts(const TruncateDraftsArgs& a, Context) {
  const int64_t size = mask_size(a.vocab_size, a.Y);
  for (int64_t b = 0; b < a.B; ++b) {
    const int64_t drafts = verified_drafts(a.seq_lens_this_time[b], a.seq_lens_encoder[b], a.S);
    for (int64_t i = 0; i < drafts; ++i) {
      const int64_t mask = mask_of_row(a.bitmask_rows, a.R_cap, a.U, a.cu_seqlens_q_output[b] + i);
      if (mask < 0) continue;
      const int32_t* words = a.bitmask + mask * a.Y;
      if (mask_allows(words, size, a.draft_tokens[b * a.S + 1 + i])) continue;
      a.seq_lens_this_time[b] = static_cast<int32_t>(i + 1);
      break;
    }
  }
}
SPECDEC_OP(truncate_drafts, kUnlimited)

void map_draft_logits(const MapDraftLogitsArgs& a, Context threads) {
  with_float_type(a.logits_type, [&](auto type) {
    using L = decltype(type);
    const auto lacking = L::narrow(-INFINITY);
    each(threads, a.R_cap, a.V, [&](int64_t r) {
      const auto* own = static_cast<const typename L::Bits*>(a.own_logits) + r * a.V_draft;
      auto* row = static_cast<typename L::Bits*>(a.logits) + r * a.V;
      for (int64_t i = 0; i < a.V; ++i) {
        const int32_t column = a.target_to_draft[i];
        row[i] = column >= 0 && column < a.V_draft ? own[column] : lacking;
      }
    });
  });
}
SPECDEC_OP(map_draft_logits, kUnlimited)

void truncate_by_confidence(const TruncateByConfidenceArgs& a, Context) {
  for (int64_t b = 0; b < a.B; ++b) {
    const float* confidence = a.draft_confidence + b * (a.S - 1);
    a.seq_lens_this_time[b] =
        trusted_tokens(a.seq_lens_this_time[b], a.seq_lens_encoder[b], confidence, a.S - 1, a.min_confidence[b]);
  }
}
SPECDEC_OP(truncate_by_confidence, kUnlimited)

}  // namespace specdec::cpu
