// Exports of the ops that work on rows of logits or probabilities.
#include "target.h"

namespace specdec::ffi {
namespace {

// Rows of logits, read (const void) or changed (void).
template <typename T>
T* logit_rows(TargetOperands& op, const TensorView& logits, LogitRows* size) {
  size->rows = op.extent(logits, 0);
  size->vocabulary = op.extent(logits, 1);
  op.within("logits", "V", size->vocabulary, target::kMostVocabulary);
  FloatType type;
  T* data = op.floats<T>("logits", logits, {size->rows, size->vocabulary}, &type);
  size->type = static_cast<LogitType>(type);
  return data;
}

}  // namespace

Function sample_target(TensorView logits, TensorView row_temperature, TensorView row_top_p, TensorView row_top_k,
                       TensorView row_min_p, TensorView row_seed, TensorView position,
                       TensorView target_tokens SPECDEC_OPTIONS) {
  TargetOperands op("sample_target");
  SampleTargetArgs a;
  a.logits = logit_rows<const void>(op, logits, &a.size);
  const int64_t rows = a.size.rows;
  a.row_temperature = op.data<const float>("row_temperature", row_temperature, {rows});
  a.row_top_p = op.data<const float>("row_top_p", row_top_p, {rows});
  a.row_top_k = op.data<const int32_t>("row_top_k", row_top_k, {rows});
  a.row_min_p = op.data<const float>("row_min_p", row_min_p, {rows});
  a.row_seed = op.data<const int64_t>("row_seed", row_seed, {rows});
  a.position = op.data<const int64_t>("position", position, {rows});
  a.target_tokens = op.data<int64_t>("target_tokens", target_tokens, {rows});
  return SPECDEC_PLAN(op, target::sample_target, a);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(sample_target, specdec::ffi::sample_target)

Function processed_probs(TensorView logits, TensorView row_temperature, TensorView row_top_p, TensorView row_top_k,
                         TensorView row_min_p, TensorView position, TensorView probs SPECDEC_OPTIONS) {
  TargetOperands op("processed_probs");
  ProcessedProbsArgs a;
  a.logits = logit_rows<const void>(op, logits, &a.size);
  const int64_t rows = a.size.rows;
  a.row_temperature = op.data<const float>("row_temperature", row_temperature, {rows});
  a.row_top_p = op.data<const float>("row_top_p", row_top_p, {rows});
  a.row_top_k = op.data<const int32_t>("row_top_k", row_top_k, {rows});
  a.row_min_p = op.data<const float>("row_min_p", row_min_p, {rows});
  a.position = op.data<const int64_t>("position", position, {rows});
  a.probs = op.data<float>("probs", probs, {rows, a.size.vocabulary});
  return SPECDEC_PLAN(op, target::processed_probs, a);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(processed_probs, specdec::ffi::processed_probs)

Function top_p_candidates(TensorView probs, TensorView top_p, TensorView batch_id_per_token_output,
                          TensorView candidate_scores, TensorView candidate_ids,
                          TensorView candidate_lens SPECDEC_OPTIONS) {
  TargetOperands op("top_p_candidates");
  TopPCandidatesArgs a;
  a.rows = op.extent(probs, 0);
  a.vocabulary = op.extent(probs, 1);
  a.slots = op.extent(top_p, 0);
  a.candidates = op.extent(candidate_ids, 1);
  op.within("top_p", "M", a.slots, target::kMostSlots);
  op.within("probs", "V", a.vocabulary, target::kMostVocabulary);
  op.within("candidate_ids", "C", a.candidates, a.vocabulary);
  a.probs = op.data<const float>("probs", probs, {a.rows, a.vocabulary});
  a.top_p = op.data<const float>("top_p", top_p, {a.slots});
  a.batch_id_per_token_output =
      op.data<const int32_t>("batch_id_per_token_output", batch_id_per_token_output, {a.rows});
  a.candidate_scores = op.data<float>("candidate_scores", candidate_scores, {a.rows, a.candidates});
  a.candidate_ids = op.data<int64_t>("candidate_ids", candidate_ids, {a.rows, a.candidates});
  a.candidate_lens = op.data<int32_t>("candidate_lens", candidate_lens, {a.rows});
  return SPECDEC_PLAN(op, target::top_p_candidates, a);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(top_p_candidates, specdec::ffi::top_p_candidates)

Function token_logprobs(TensorView logits, TensorView rows, TensorView token_ids, TensorView cu_batch_token_offset,
                        TensorView ids, TensorView logprobs, TensorView ranks SPECDEC_OPTIONS) {
  TargetOperands op("token_logprobs");
  TokenLogprobsArgs a;
  a.logits = logit_rows<const void>(op, logits, &a.size);
  a.entries = op.extent(token_ids, 0);
  a.width = op.extent(ids, 1);
  a.slots = op.extent(cu_batch_token_offset, 0) - 1;
  op.within("ids", "N", a.width, a.size.vocabulary);
  a.rows = op.data<const int32_t>("rows", rows, {a.entries});
  a.token_ids = op.data<const int64_t>("token_ids", token_ids, {a.entries});
  a.cu_batch_token_offset = op.data<const int32_t>("cu_batch_token_offset", cu_batch_token_offset, {a.slots + 1});
  a.ids = op.data<int64_t>("ids", ids, {a.entries, a.width});
  a.logprobs = op.data<float>("logprobs", logprobs, {a.entries, a.width});
  a.ranks = op.data<int64_t>("ranks", ranks, {a.entries});
  return SPECDEC_PLAN(op, target::token_logprobs, a);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(token_logprobs, specdec::ffi::token_logprobs)

Function apply_penalties(TensorView logits, TensorView token_ids_all, TensorView prompt_lens, TensorView step_idx,
                         TensorView draft_tokens, TensorView cu_seqlens_q_output, TensorView batch_id_per_token_output,
                         TensorView repetition, TensorView frequency, TensorView presence, TensorView bad_tokens,
                         TensorView end_tokens, TensorView min_dec_len SPECDEC_OPTIONS) {
  TargetOperands op("apply_penalties");
  ApplyPenaltiesArgs a;
  a.logits = logit_rows<void>(op, logits, &a.size);
  const int64_t slots = a.slots = op.extent(token_ids_all, 0);
  a.row_width = op.extent(token_ids_all, 1);
  a.draft_width = op.extent(draft_tokens, 1);
  a.slots_in_use = op.extent(cu_seqlens_q_output, 0) - 1;
  a.bad_count = op.extent(bad_tokens, 1);
  a.end_count = op.extent(end_tokens, 0);
  op.within("cu_seqlens_q_output", "B", a.slots_in_use, slots);
  op.within("token_ids_all", "M", slots, target::kMostSlots);
  op.within("token_ids_all", "L", a.row_width, target::kMostHistory);
  op.within("draft_tokens", "S", a.draft_width, target::kMostDraftWidth);
  a.token_ids_all = op.data<const int64_t>("token_ids_all", token_ids_all, {slots, a.row_width});
  a.prompt_lens = op.data<const int64_t>("prompt_lens", prompt_lens, {slots});
  a.step_idx = op.data<const int64_t>("step_idx", step_idx, {slots});
  a.draft_tokens = op.data<const int64_t>("draft_tokens", draft_tokens, {slots, a.draft_width});
  a.cu_seqlens_q_output =
      op.data<const int32_t>("cu_seqlens_q_output", cu_seqlens_q_output, {a.slots_in_use + 1});
  a.batch_id_per_token_output =
      op.data<const int32_t>("batch_id_per_token_output", batch_id_per_token_output, {a.size.rows});
  a.repetition = op.data<const float>("repetition", repetition, {slots});
  a.frequency = op.data<const float>("frequency", frequency, {slots});
  a.presence = op.data<const float>("presence", presence, {slots});
  a.bad_tokens = op.data<const int64_t>("bad_tokens", bad_tokens, {slots, a.bad_count});
  a.end_tokens = op.data<const int64_t>("end_tokens", end_tokens, {a.end_count});
  a.min_dec_len = op.data<const int64_t>("min_dec_len", min_dec_len, {slots});
  return SPECDEC_PLAN(op, target::apply_penalties, a);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(apply_penalties, specdec::ffi::apply_penalties)

}  // namespace specdec::ffi
