// Exports update_model_status.
#include "target.h"

namespace specdec::ffi {
namespace {

Function update_model_status(TensorView seq_lens_encoder, TensorView seq_lens_decoder, TensorView seq_lens_this_time,
                             TensorView stop_flags, TensorView step_idx, TensorView token_ids_all,
                             TensorView draft_tokens, TensorView accept_tokens, TensorView accept_num,
                             TensorView has_running, TensorView is_block_step, TensorView prompt_lens,
                             TensorView end_tokens, TensorView max_dec_len SPECDEC_OPTIONS) {
  TargetOperands op("update_model_status");
  StatusArgs a;
  const int64_t m = op.extent(draft_tokens, 0);
  a.slots = op.extent(seq_lens_this_time, 0);
  a.draft_width = op.extent(draft_tokens, 1);
  a.row_width = op.extent(token_ids_all, 1);
  a.end_count = op.extent(end_tokens, 0);
  op.within("seq_lens_this_time", "B", a.slots, m);
  op.within("draft_tokens", "M", m, target::kMostSlots);
  op.within("draft_tokens", "S", a.draft_width, target::kMostDraftWidth);
  op.within("token_ids_all", "L", a.row_width, target::kMostHistory);
  a.seq_lens_encoder = op.data<int32_t>("seq_lens_encoder", seq_lens_encoder, {m});
  a.seq_lens_decoder = op.data<int32_t>("seq_lens_decoder", seq_lens_decoder, {m});
  a.seq_lens_this_time = op.data<int32_t>("seq_lens_this_time", seq_lens_this_time, {a.slots});
  a.stop_flags = op.data<bool>("stop_flags", stop_flags, {m});
  a.step_idx = op.data<int64_t>("step_idx", step_idx, {m});
  a.token_ids_all = op.data<int64_t>("token_ids_all", token_ids_all, {m, a.row_width});
  a.draft_tokens = op.data<int64_t>("draft_tokens", draft_tokens, {m, a.draft_width});
  a.accept_tokens = op.data<const int64_t>("accept_tokens", accept_tokens, {m, a.draft_width});
  a.accept_num = op.data<int32_t>("accept_num", accept_num, {m});
  a.has_running = op.data<bool>("has_running", has_running, {1});
  a.is_block_step = op.data<const bool>("is_block_step", is_block_step, {m});
  a.prompt_lens = op.data<const int64_t>("prompt_lens", prompt_lens, {m});
  a.end_tokens = op.data<const int64_t>("end_tokens", end_tokens, {a.end_count});
  a.max_dec_len = op.data<const int64_t>("max_dec_len", max_dec_len, {m});
  return SPECDEC_PLAN(op, target::update_model_status, a);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(update_model_status, update_model_status)

}  // namespace
}  // namespace specdec::ffi
