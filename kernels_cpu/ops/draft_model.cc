// draft_model_preprocess, draft_model_update, draft_model_postprocess; gather_draft_logits, insert_first_token.
#include <cstring>

#include "../op.h"
#include "specdec/draft_model.h"
#include "specdec/draft_rows.h"
#include "specdec_ops/draft_model_postprocess.h"
#include "specdec_ops/draft_model_preprocess.h"
#include "specdec_ops/draft_model_update.h"
#include "specdec_ops/gather_draft_logits.h"
#include "specdec_ops/insert_first_token.h"

namespace specdec::cpu {
namespace {

template <class Args>
DraftSlot draft_slot(const Args& a, int64_t b) {
  return {a.step_idx[b], a.seq_lens_encoder[b], a.seq_lens_decoder[b], a.seq_lens_this_time[b], a.stop_flags[b]};
}

template <class Args>
void store_slot(const Args& a, int64_t b, const DraftSlot& slot) {
  a.step_idx[b] = slot.step_idx;
  a.seq_lens_encoder[b] = slot.enc;
  a.seq_lens_decoder[b] = slot.dec;
  a.seq_lens_this_time[b] = slot.slt;
}

// body(b, share, reported tokens before b's, rows of the draft model) for all slots.
template <class Args, class Body>
void each_share(const Args& a, int64_t capacity, Body body) {
  int64_t next = 0, batch = 0;
  for (int64_t b = 0; b < a.B; ++b) {
    const DraftShare share = draft_share(a.seq_lens_this_time[b], a.seq_lens_encoder[b], a.R_cap);
    body(b, share, batch, draft_rows(share, next, batch, a.R_cap, capacity));
    next += share.next;
    batch += share.batch;
  }
}

}  // namespace

void draft_model_preprocess(const DraftModelPreprocessArgs& a, Context) {
  bool running = false;
  for (int64_t b = 0; b < a.B; ++b) {
    DraftSlot slot = draft_slot(a, b);
    const BaseSlot base = {a.base_model_step_idx[b], a.max_dec_len[b],     a.base_model_seq_lens_decoder[b],
                           a.accept_num[b],          a.draft_token_num[b], a.base_model_stop_flags[b]};
    const AcceptedMoves moves = start_drafts(&slot, base, a.I_cap, a.S, a.min_room, a.pre_ids != nullptr);
    const int64_t* accepted = a.accept_tokens + b * a.S;
    std::copy_n(accepted, moves.count,
                moves.in_chunk ? a.input_ids + b * a.I_cap + slot.enc - 1 : a.draft_tokens + b * a.S);
    for (int64_t i = 0; a.pre_ids != nullptr && i < moves.count; ++i) {
      const int64_t column = wrap_add(moves.column, i);
      if (column >= 0 && column < a.P) a.pre_ids[b * a.P + column] = accepted[i];
    }
    for (int64_t i = 1; i < a.S; ++i) a.base_model_draft_tokens[b * a.S + i] = -1;
    store_slot(a, b, slot);
    a.stop_flags[b] = slot.stopped;
    running |= !slot.stopped;
  }
  *a.has_running = running;
}
SPECDEC_OP(draft_model_preprocess, kUnlimited)

void draft_model_update(const DraftModelUpdateArgs& a, Context) {
  bool running = false;
  int64_t rank = 0;
  for (int64_t b = 0; b < a.B; ++b) {
    DraftSlot slot = draft_slot(a, b);
    if (slot.slt <= 0) continue;
    const int64_t token = rank < a.R_cap ? a.inter_next_tokens[rank] : -1;
    ++rank;
    const DraftMoves moves = a.pre_ids != nullptr
                                 ? advance_drafts_in_history(&slot, token, a.max_dec_len[b])
                                 : advance_drafts(&slot, token, a.substep, a.draft_token_num[b], a.max_dec_len[b], a.S);
    if (moves.feeds) a.draft_tokens[b * a.S] = moves.fed;
    if (a.substep + 1 < a.S) a.base_model_draft_tokens[b * a.S + a.substep + 1] = moves.draft;
    if (a.pre_ids != nullptr && moves.column >= 0 && moves.column < a.P) a.pre_ids[b * a.P + moves.column] = token;
    store_slot(a, b, slot);
    running |= slot.slt > 0;
  }
  *a.has_running = running;
}
SPECDEC_OP(draft_model_update, kUnlimited)

void draft_model_postprocess(const DraftModelPostprocessArgs& a, Context) {
  for (int64_t b = 0; b < a.B; ++b) {
    const int64_t* drafts = a.draft_tokens + b * a.S + 1;
    a.seq_lens_this_time[b] = drafted_tokens(a.seq_lens_this_time[b], a.seq_lens_encoder[b], a.seq_lens_decoder[b],
                                             a.stop_flags[b], drafts, a.S - 1);
  }
}
SPECDEC_OP(draft_model_postprocess, kUnlimited)

void gather_draft_logits(const GatherDraftLogitsArgs& a, Context) {
  const int64_t bytes = a.V * (a.logits_type == FloatType::kFloat32 ? 4 : 2);
  const auto copy = [&](const void* from, int64_t first, int64_t to, int64_t rows) {
    std::memcpy(static_cast<char*>(a.draft_logits) + to * bytes, static_cast<const char*>(from) + first * bytes,
                static_cast<size_t>(rows * bytes));
  };
  a.cu_next_token_offset[0] = a.cu_batch_token_offset[0] = 0;
  int64_t next = 0;
  each_share(a, a.D_cap, [&](int64_t b, const DraftShare& share, int64_t batch, const DraftRows& rows) {
    if (share.has_first() && batch < a.D_cap) copy(a.first_token_logits, b, batch, 1);
    if (rows.count > 0) copy(a.logits, rows.source, rows.target, rows.count);
    a.next_token_num[b] = static_cast<int32_t>(share.next);
    a.batch_token_num[b] = static_cast<int32_t>(share.batch);
    a.cu_next_token_offset[b + 1] = saturate32(next += share.next);
    a.cu_batch_token_offset[b + 1] = saturate32(batch + share.batch);
  });
}
SPECDEC_OP(gather_draft_logits, kUnlimited)

void insert_first_token(const InsertFirstTokenArgs& a, Context) {
  each_share(a, a.D_cap, [&](int64_t b, const DraftShare& share, int64_t batch, const DraftRows& rows) {
    if (share.has_first() && batch < a.D_cap) a.draft_token_ids[batch] = a.accept_tokens[b * a.S];
    std::copy_n(a.next_tokens + rows.source, rows.count, a.draft_token_ids + rows.target);
  });
}
SPECDEC_OP(insert_first_token, kUnlimited)

}  // namespace specdec::cpu
