// Exports gather_accepted.
#include "target.h"

namespace specdec::ffi {
namespace {

Function gather_accepted(TensorView logits, TensorView accept_tokens, TensorView accept_num,
                         TensorView cu_seqlens_q_output, TensorView seq_lens_encoder, TensorView seq_lens_this_time,
                         TensorView token_ids, TensorView rows, TensorView cu_batch_token_offset SPECDEC_OPTIONS) {
  TargetOperands op("gather_accepted");
  GatherAcceptedArgs a;
  const int64_t m = op.extent(accept_tokens, 0);
  a.slots = op.extent(seq_lens_this_time, 0);
  a.draft_width = op.extent(accept_tokens, 1);
  a.row_capacity = op.extent(logits, 0);  // all that is used of logits
  a.accept_capacity = op.extent(token_ids, 0);
  op.within("seq_lens_this_time", "B", a.slots, m);
  op.within("accept_tokens", "M", m, target::kMostSlots);
  op.within("accept_tokens", "S", a.draft_width, target::kMostDraftWidth);
  a.accept_tokens = op.data<const int64_t>("accept_tokens", accept_tokens, {m, a.draft_width});
  a.accept_num = op.data<const int32_t>("accept_num", accept_num, {m});
  a.cu_seqlens_q_output = op.data<const int32_t>("cu_seqlens_q_output", cu_seqlens_q_output, {a.slots + 1});
  a.seq_lens_encoder = op.data<const int32_t>("seq_lens_encoder", seq_lens_encoder, {m});
  a.seq_lens_this_time = op.data<const int32_t>("seq_lens_this_time", seq_lens_this_time, {a.slots});
  a.token_ids = op.data<int64_t>("token_ids", token_ids, {a.accept_capacity});
  a.rows = op.data<int32_t>("rows", rows, {a.accept_capacity});
  a.cu_batch_token_offset = op.data<int32_t>("cu_batch_token_offset", cu_batch_token_offset, {a.slots + 1});
  return SPECDEC_PLAN(op, target::gather_accepted, a);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gather_accepted, gather_accepted)

}  // namespace
}  // namespace specdec::ffi
