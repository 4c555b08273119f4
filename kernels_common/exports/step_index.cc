// Exports of the packed batch: sections 1 and 2 of the contract.
#include "target.h"

namespace specdec::ffi {
namespace {

Function prepare_inputs(TensorView input_ids, TensorView draft_tokens, TensorView seq_lens_this_time,
                        TensorView seq_lens_encoder, TensorView seq_lens_decoder, TensorView ids_remove_padding,
                        TensorView batch_id_per_token, TensorView cu_seqlens_q, TensorView cu_seqlens_k,
                        TensorView cu_seqlens_q_output, TensorView batch_id_per_token_output,
                        TensorView num_tokens SPECDEC_OPTIONS) {
  TargetOperands op("prepare_inputs");
  PrepareInputsArgs a;
  const int64_t m = op.extent(draft_tokens, 0);
  a.slots = op.extent(seq_lens_this_time, 0);
  a.input_width = op.extent(input_ids, 1);
  a.draft_width = op.extent(draft_tokens, 1);
  a.token_capacity = op.extent(ids_remove_padding, 0);
  a.row_capacity = op.extent(batch_id_per_token_output, 0);
  op.within("seq_lens_this_time", "B", a.slots, m);
  op.within("draft_tokens", "M", m, target::kMostSlots);
  op.within("draft_tokens", "S", a.draft_width, target::kMostDraftWidth);
  a.input_ids = op.data<const int64_t>("input_ids", input_ids, {m, a.input_width});
  a.draft_tokens = op.data<const int64_t>("draft_tokens", draft_tokens, {m, a.draft_width});
  a.seq_lens_this_time = op.data<const int32_t>("seq_lens_this_time", seq_lens_this_time, {a.slots});
  a.seq_lens_encoder = op.data<const int32_t>("seq_lens_encoder", seq_lens_encoder, {m});
  a.seq_lens_decoder = op.data<const int32_t>("seq_lens_decoder", seq_lens_decoder, {m});
  a.ids_remove_padding = op.data<int64_t>("ids_remove_padding", ids_remove_padding, {a.token_capacity});
  a.batch_id_per_token = op.data<int32_t>("batch_id_per_token", batch_id_per_token, {a.token_capacity});
  a.cu_seqlens_q = op.data<int32_t>("cu_seqlens_q", cu_seqlens_q, {a.slots + 1});
  a.cu_seqlens_k = op.data<int32_t>("cu_seqlens_k", cu_seqlens_k, {a.slots + 1});
  a.cu_seqlens_q_output = op.data<int32_t>("cu_seqlens_q_output", cu_seqlens_q_output, {a.slots + 1});
  a.batch_id_per_token_output =
      op.data<int32_t>("batch_id_per_token_output", batch_id_per_token_output, {a.row_capacity});
  a.num_tokens = op.data<int32_t>("num_tokens", num_tokens, {2});
  return SPECDEC_PLAN(op, target::prepare_inputs, a);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(prepare_inputs, prepare_inputs)

int64_t row_bytes(const TargetOperands& op, const TensorView& x) { return op.extent(x, 1) * (x.dtype().bits / 8); }

PermuteRowsArgs permute_rows(TargetOperands& op, const TensorView& x, const TensorView& cu_seqlens_q,
                             const TensorView& seq_lens_this_time, const TensorView& seq_lens_encoder,
                             const TensorView& out, int64_t token_order) {
  PermuteRowsArgs a;
  a.slots = op.extent(seq_lens_this_time, 0);
  a.capacity = op.extent(x, 0);
  a.row_bytes = row_bytes(op, x);
  a.prefill_first = token_order != 0;
  op.within("seq_lens_this_time", "B", a.slots, op.extent(seq_lens_encoder, 0));
  op.within("seq_lens_encoder", "M", op.extent(seq_lens_encoder, 0), target::kMostSlots);
  a.x = op.bytes<const char>("x", x, {a.capacity, op.extent(x, 1)});
  a.cu_seqlens_q = op.data<const int32_t>("cu_seqlens_q", cu_seqlens_q, {a.slots + 1});
  a.seq_lens_this_time = op.data<const int32_t>("seq_lens_this_time", seq_lens_this_time, {a.slots});
  a.seq_lens_encoder = op.data<const int32_t>("seq_lens_encoder", seq_lens_encoder, {op.extent(seq_lens_encoder, 0)});
  a.out = op.bytes_like<char>("out", out, {a.capacity, op.extent(x, 1)}, x);
  return a;
}

Function adjust_batch(TensorView x, TensorView cu_seqlens_q, TensorView seq_lens_this_time,
                      TensorView seq_lens_encoder, TensorView out, int64_t token_order SPECDEC_OPTIONS) {
  TargetOperands op("adjust_batch");
  const PermuteRowsArgs a = permute_rows(op, x, cu_seqlens_q, seq_lens_this_time, seq_lens_encoder, out, token_order);
  return SPECDEC_PLAN(op, target::adjust_batch, a);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(adjust_batch, adjust_batch)

Function recover_batch(TensorView x, TensorView cu_seqlens_q, TensorView seq_lens_this_time,
                       TensorView seq_lens_encoder, TensorView out, int64_t token_order SPECDEC_OPTIONS) {
  TargetOperands op("recover_batch");
  const PermuteRowsArgs a = permute_rows(op, x, cu_seqlens_q, seq_lens_this_time, seq_lens_encoder, out, token_order);
  return SPECDEC_PLAN(op, target::recover_batch, a);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(recover_batch, recover_batch)

Function gather_next_token(TensorView x, TensorView cu_seqlens_q, TensorView cu_seqlens_q_output,
                           TensorView batch_id_per_token_output, TensorView seq_lens_this_time,
                           TensorView seq_lens_encoder, TensorView out, int64_t is_speculative,
                           int64_t token_order SPECDEC_OPTIONS) {
  TargetOperands op("gather_next_token");
  GatherNextTokenArgs a;
  a.slots = op.extent(seq_lens_this_time, 0);
  a.capacity = op.extent(x, 0);
  a.row_capacity = op.extent(batch_id_per_token_output, 0);
  a.row_bytes = row_bytes(op, x);
  a.is_speculative = is_speculative != 0;
  a.prefill_first = token_order != 0;
  op.within("seq_lens_this_time", "B", a.slots, op.extent(seq_lens_encoder, 0));
  op.within("seq_lens_encoder", "M", op.extent(seq_lens_encoder, 0), target::kMostSlots);
  a.x = op.bytes<const char>("x", x, {a.capacity, op.extent(x, 1)});
  a.cu_seqlens_q = op.data<const int32_t>("cu_seqlens_q", cu_seqlens_q, {a.slots + 1});
  a.cu_seqlens_q_output = op.data<const int32_t>("cu_seqlens_q_output", cu_seqlens_q_output, {a.slots + 1});
  a.batch_id_per_token_output =
      op.data<const int32_t>("batch_id_per_token_output", batch_id_per_token_output, {a.row_capacity});
  a.seq_lens_this_time = op.data<const int32_t>("seq_lens_this_time", seq_lens_this_time, {a.slots});
  a.seq_lens_encoder = op.data<const int32_t>("seq_lens_encoder", seq_lens_encoder, {op.extent(seq_lens_encoder, 0)});
  a.out = op.bytes_like<char>("out", out, {a.is_speculative ? a.row_capacity : a.slots, op.extent(x, 1)}, x);
  return SPECDEC_PLAN(op, target::gather_next_token, a);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gather_next_token, gather_next_token)

}  // namespace
}  // namespace specdec::ffi
