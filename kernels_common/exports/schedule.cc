// Exports of section 8 of the contract.
#include "target.h"

namespace specdec::ffi {
namespace {

Function schedule_slots(TensorView slot_actions, TensorView chunk_lens, TensorView chunk_starts,
                        TensorView chunk_step_idx, TensorView token_ids_all, TensorView seq_lens_encoder,
                        TensorView seq_lens_decoder, TensorView seq_lens_this_time, TensorView step_idx,
                        TensorView stop_flags, TensorView is_block_step, TensorView input_ids SPECDEC_OPTIONS) {
  TargetOperands op("schedule_slots");
  ScheduleSlotsArgs a;
  a.M = op.extent(token_ids_all, 0);
  a.L = op.extent(token_ids_all, 1);
  a.B = op.extent(seq_lens_this_time, 0);
  a.I_cap = op.extent(input_ids, 1);
  op.within("seq_lens_this_time", "B", a.B, a.M);
  op.within("token_ids_all", "M", a.M, target::kMostSlots);
  op.within("token_ids_all", "L", a.L, target::kMostHistory);
  a.slot_actions = op.data<const int32_t>("slot_actions", slot_actions, {a.M});
  a.chunk_lens = op.data<const int32_t>("chunk_lens", chunk_lens, {a.M});
  a.chunk_starts = op.data<const int32_t>("chunk_starts", chunk_starts, {a.M});
  a.chunk_step_idx = op.data<const int64_t>("chunk_step_idx", chunk_step_idx, {a.M});
  a.token_ids_all = op.data<const int64_t>("token_ids_all", token_ids_all, {a.M, a.L});
  a.seq_lens_encoder = op.data<int32_t>("seq_lens_encoder", seq_lens_encoder, {a.M});
  a.seq_lens_decoder = op.data<int32_t>("seq_lens_decoder", seq_lens_decoder, {a.M});
  a.seq_lens_this_time = op.data<int32_t>("seq_lens_this_time", seq_lens_this_time, {a.B});
  a.step_idx = op.data<int64_t>("step_idx", step_idx, {a.M});
  a.stop_flags = op.data<bool>("stop_flags", stop_flags, {a.M});
  a.is_block_step = op.data<bool>("is_block_step", is_block_step, {a.M});
  a.input_ids = op.data<int64_t>("input_ids", input_ids, {a.M, a.I_cap});
  return SPECDEC_PLAN(op, target::schedule_slots, a);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(schedule_slots, schedule_slots)

Function set_stop_sequences(TensorView token_ids_all, TensorView prompt_lens, TensorView step_idx,
                            TensorView min_dec_len, TensorView stop_seqs, TensorView stop_seqs_lens,
                            TensorView accept_tokens, TensorView accept_num, TensorView max_dec_len SPECDEC_OPTIONS) {
  TargetOperands op("set_stop_sequences");
  SetStopSequencesArgs a;
  a.M = op.extent(token_ids_all, 0);
  a.L = op.extent(token_ids_all, 1);
  a.Q = op.extent(stop_seqs, 1);
  a.Z = op.extent(stop_seqs, 2);
  a.S = op.extent(accept_tokens, 1);
  op.within("token_ids_all", "M", a.M, target::kMostSlots);
  op.within("token_ids_all", "L", a.L, target::kMostHistory);
  op.within("accept_tokens", "S", a.S, target::kMostDraftWidth);
  a.token_ids_all = op.data<const int64_t>("token_ids_all", token_ids_all, {a.M, a.L});
  a.prompt_lens = op.data<const int64_t>("prompt_lens", prompt_lens, {a.M});
  a.step_idx = op.data<const int64_t>("step_idx", step_idx, {a.M});
  a.min_dec_len = op.data<const int64_t>("min_dec_len", min_dec_len, {a.M});
  a.stop_seqs = op.data<const int64_t>("stop_seqs", stop_seqs, {a.M, a.Q, a.Z});
  a.stop_seqs_lens = op.data<const int32_t>("stop_seqs_lens", stop_seqs_lens, {a.M, a.Q});
  a.accept_tokens = op.data<int64_t>("accept_tokens", accept_tokens, {a.M, a.S});
  a.accept_num = op.data<int32_t>("accept_num", accept_num, {a.M});
  a.max_dec_len = op.data<int64_t>("max_dec_len", max_dec_len, {a.M});
  return SPECDEC_PLAN(op, target::set_stop_sequences, a);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(set_stop_sequences, set_stop_sequences)

}  // namespace
}  // namespace specdec::ffi
