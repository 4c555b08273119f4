// Exports the n-gram ops.
#include "target.h"

namespace specdec::ffi {
namespace {

// Bytes of a row of `index`: what its layout takes, or what one takes that keeps nothing, if that is what was given.
int64_t index_bytes(const TargetOperands& op, const TensorView& index, int64_t row_width, int min_size, int max_size) {
  if (op.extent(index, 1) == target::kNoIndexBytes) return target::kNoIndexBytes;
  return target::ngram_index_bytes(row_width, min_size, max_size);
}

template <bool kHybrid>
Function propose(TensorView token_ids_all, TensorView prompt_lens, TensorView step_idx, TensorView draft_token_num,
                 TensorView seq_lens_encoder, TensorView seq_lens_decoder, TensorView max_dec_len,
                 TensorView draft_tokens, TensorView seq_lens_this_time, Optional<TensorView> index,
                 int64_t max_ngram_size, int64_t min_ngram_size, int64_t token_budget, int64_t match_policy,
                 int64_t pad_to_max SPECDEC_OPTIONS) {
  TargetOperands op(kHybrid ? "hybrid_mtp_ngram" : "ngram_match");
  ProposeArgs a;
  const int64_t m = op.extent(draft_tokens, 0);
  a.slots = op.extent(seq_lens_this_time, 0);
  a.draft_width = op.extent(draft_tokens, 1);
  a.row_width = op.extent(token_ids_all, 1);
  a.max_size = static_cast<int>(max_ngram_size);
  a.min_size = static_cast<int>(min_ngram_size);
  a.index_bytes = index.has_value() ? index_bytes(op, index.value(), a.row_width, a.min_size, a.max_size) : 0;
  a.token_budget = token_budget;
  a.policy = static_cast<int>(match_policy);
  a.hybrid = kHybrid;
  a.pad_to_max = pad_to_max != 0;
  op.within("seq_lens_this_time", "B", a.slots, m);
  op.within("draft_tokens", "M", m, target::kMostSlots);
  op.within("draft_tokens", "S", a.draft_width, target::kMostProposeWidth);
  op.within("token_ids_all", "L", a.row_width, target::kMostHistory);
  a.token_ids_all = op.data<const int64_t>("token_ids_all", token_ids_all, {m, a.row_width});
  a.prompt_lens = op.data<const int64_t>("prompt_lens", prompt_lens, {m});
  a.step_idx = op.data<const int64_t>("step_idx", step_idx, {m});
  a.draft_token_num = op.data<const int32_t>("draft_token_num", draft_token_num, {m});
  a.seq_lens_encoder = op.data<const int32_t>("seq_lens_encoder", seq_lens_encoder, {m});
  a.seq_lens_decoder = op.data<const int32_t>("seq_lens_decoder", seq_lens_decoder, {m});
  a.max_dec_len = op.data<const int64_t>("max_dec_len", max_dec_len, {m});
  a.draft_tokens = op.data<int64_t>("draft_tokens", draft_tokens, {m, a.draft_width});
  a.seq_lens_this_time = op.data<int32_t>("seq_lens_this_time", seq_lens_this_time, {a.slots});
  a.index = op.data<uint8_t>("index", index, {m, a.index_bytes});
  return SPECDEC_PLAN(op, target::propose, a);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ngram_match, propose<false>)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(hybrid_mtp_ngram, propose<true>)

Function ngram_index_update(TensorView index, TensorView token_ids_all, TensorView prompt_lens, TensorView step_idx,
                            TensorView seq_lens_encoder, TensorView seq_lens_decoder, int64_t max_ngram_size,
                            int64_t min_ngram_size SPECDEC_OPTIONS) {
  TargetOperands op("ngram_index_update");
  IndexUpdateArgs a;
  a.slots = op.extent(token_ids_all, 0);
  a.row_width = op.extent(token_ids_all, 1);
  a.max_size = static_cast<int>(max_ngram_size);
  a.min_size = static_cast<int>(min_ngram_size);
  a.index_bytes = index_bytes(op, index, a.row_width, a.min_size, a.max_size);
  op.within("token_ids_all", "M", a.slots, target::kMostSlots);
  op.within("token_ids_all", "L", a.row_width, target::kMostHistory);
  a.index = op.data<uint8_t>("index", index, {a.slots, a.index_bytes});
  a.token_ids_all = op.data<const int64_t>("token_ids_all", token_ids_all, {a.slots, a.row_width});
  a.prompt_lens = op.data<const int64_t>("prompt_lens", prompt_lens, {a.slots});
  a.step_idx = op.data<const int64_t>("step_idx", step_idx, {a.slots});
  a.seq_lens_encoder = op.data<const int32_t>("seq_lens_encoder", seq_lens_encoder, {a.slots});
  a.seq_lens_decoder = op.data<const int32_t>("seq_lens_decoder", seq_lens_decoder, {a.slots});
  return SPECDEC_PLAN(op, target::ngram_index_update, a);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ngram_index_update, ngram_index_update)

Function ngram_index_reset(TensorView index, TensorView reset_slots SPECDEC_OPTIONS) {
  TargetOperands op("ngram_index_reset");
  IndexResetArgs a;
  a.slots = op.extent(index, 0);
  a.index_bytes = op.extent(index, 1);
  a.index = op.data<uint8_t>("index", index, {a.slots, a.index_bytes});
  a.reset_slots = op.data<const bool>("reset_slots", reset_slots, {a.slots});
  return SPECDEC_PLAN(op, target::ngram_index_reset, a);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ngram_index_reset, ngram_index_reset)

// Bytes of an index row: what Backend.workspace answers.
int64_t ngram_index_bytes(int64_t row_width, int64_t min_ngram_size, int64_t max_ngram_size) {
  return target::ngram_index_bytes(row_width, static_cast<int>(min_ngram_size), static_cast<int>(max_ngram_size));
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ngram_index_bytes, ngram_index_bytes)

}  // namespace
}  // namespace specdec::ffi
