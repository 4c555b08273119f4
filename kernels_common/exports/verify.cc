// Exports verify_draft_tokens.
#include "target.h"

namespace specdec::ffi {
namespace {

Function verify_draft_tokens(TensorView draft_tokens, Optional<TensorView> target_tokens,
                             Optional<TensorView> candidate_ids, Optional<TensorView> candidate_scores,
                             Optional<TensorView> candidate_lens, Optional<TensorView> top_p,
                             Optional<TensorView> target_probs, Optional<TensorView> draft_probs,
                             TensorView seed_of_slot, TensorView prompt_lens, TensorView step_idx,
                             TensorView max_dec_len, TensorView stop_flags, TensorView is_block_step,
                             TensorView seq_lens_encoder, TensorView seq_lens_decoder, TensorView seq_lens_this_time,
                             TensorView cu_seqlens_q_output, TensorView reasoning_status, TensorView end_tokens,
                             TensorView accept_tokens, TensorView accept_num, int64_t strategy, int64_t verify_window,
                             int64_t accept_policy, int64_t end_at_limit SPECDEC_OPTIONS) {
  TargetOperands op("verify_draft_tokens");
  VerifyArgs a;
  a.strategy = static_cast<Strategy>(strategy);
  a.verify_window = verify_window;
  a.policy = static_cast<AcceptPolicy>(accept_policy);
  a.end_at_limit = end_at_limit != 0;
  const Optional<TensorView>& judging = a.strategy == Strategy::kTopP        ? candidate_ids
                                        : a.strategy == Strategy::kRejection ? target_probs
                                                                             : target_tokens;
  if (!judging.has_value()) {
    TVM_FFI_THROW(ValueError) << "verify_draft_tokens: strategy " << strategy
                              << " needs target_tokens (0, 1), candidate_ids (2) or target_probs (3), got none; "
                                 "call it through specdec_hal";
  }
  a.slots = op.extent(draft_tokens, 0);
  a.draft_width = op.extent(draft_tokens, 1);
  a.slots_in_use = op.extent(seq_lens_this_time, 0);
  a.rows = op.extent(judging.value(), 0);
  a.width = op.extent(judging.value(), 1);
  a.end_count = op.extent(end_tokens, 0);
  const int64_t m = a.slots;
  op.within("seq_lens_this_time", "B", a.slots_in_use, m);
  op.within("draft_tokens", "M", m, target::kMostSlots);
  op.within("draft_tokens", "S", a.draft_width, target::kMostDraftWidth);
  op.within("target_probs", "V", a.strategy == Strategy::kRejection ? a.width : 0, target::kMostVocabulary);
  a.draft_tokens = op.data<const int64_t>("draft_tokens", draft_tokens, {m, a.draft_width});
  a.target_tokens = op.data<const int64_t>("target_tokens", target_tokens, {a.rows});
  a.candidate_ids = op.data<const int64_t>("candidate_ids", candidate_ids, {a.rows, a.width});
  a.candidate_scores = op.data<const float>("candidate_scores", candidate_scores, {a.rows, a.width});
  a.candidate_lens = op.data<const int32_t>("candidate_lens", candidate_lens, {a.rows});
  a.top_p = op.data<const float>("top_p", top_p, {m});
  a.target_probs = op.data<const float>("target_probs", target_probs, {a.rows, a.width});
  a.draft_probs = op.data<const float>("draft_probs", draft_probs, {m, a.draft_width - 1, a.width});
  a.seed = op.data<const int64_t>("seed", seed_of_slot, {m});
  a.prompt_lens = op.data<const int64_t>("prompt_lens", prompt_lens, {m});
  a.step_idx = op.data<const int64_t>("step_idx", step_idx, {m});
  a.max_dec_len = op.data<const int64_t>("max_dec_len", max_dec_len, {m});
  a.stop_flags = op.data<const bool>("stop_flags", stop_flags, {m});
  a.is_block_step = op.data<const bool>("is_block_step", is_block_step, {m});
  a.seq_lens_encoder = op.data<const int32_t>("seq_lens_encoder", seq_lens_encoder, {m});
  a.seq_lens_decoder = op.data<const int32_t>("seq_lens_decoder", seq_lens_decoder, {m});
  a.seq_lens_this_time = op.data<const int32_t>("seq_lens_this_time", seq_lens_this_time, {a.slots_in_use});
  a.cu_seqlens_q_output = op.data<const int32_t>("cu_seqlens_q_output", cu_seqlens_q_output, {a.slots_in_use + 1});
  a.reasoning_status = op.data<const int32_t>("reasoning_status", reasoning_status, {m});
  a.end_tokens = op.data<const int64_t>("end_tokens", end_tokens, {a.end_count});
  a.accept_tokens = op.data<int64_t>("accept_tokens", accept_tokens, {m, a.draft_width});
  a.accept_num = op.data<int32_t>("accept_num", accept_num, {m});
  return SPECDEC_PLAN(op, target::verify_draft_tokens, a);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(verify_draft_tokens, verify_draft_tokens)

}  // namespace
}  // namespace specdec::ffi
