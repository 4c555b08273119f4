#include "ops.h"

#include "../kernels/adjust_batch.xpu"
#include "../kernels/gather_next_token.xpu"
#include "../kernels/prepare_inputs.xpu"

namespace specdec::xpu {

void prepare_inputs(const PrepareInputsArgs& a, const LaunchOptions& options) {
  launch_items(options, a.slots, 16, prepare_inputs_kernel, a.input_ids, a.draft_tokens, a.seq_lens_this_time,
               a.seq_lens_encoder, a.seq_lens_decoder, a.ids_remove_padding, a.batch_id_per_token, a.cu_seqlens_q,
               a.cu_seqlens_k, a.cu_seqlens_q_output, a.batch_id_per_token_output, a.num_tokens, a.slots,
               a.input_width, a.draft_width, a.token_capacity, a.row_capacity);
}

namespace {

template <bool kRecover>
void permute_rows(const PermuteRowsArgs& a, const LaunchOptions& options) {
  launch_items(options, a.capacity, 8, permute_rows_kernel<kRecover>, a.x, a.cu_seqlens_q, a.seq_lens_this_time,
               a.seq_lens_encoder, a.out, a.slots, a.capacity, a.row_bytes, a.prefill_first);
}

}  // namespace

void adjust_batch(const PermuteRowsArgs& args, const LaunchOptions& options) { permute_rows<false>(args, options); }
void recover_batch(const PermuteRowsArgs& args, const LaunchOptions& options) { permute_rows<true>(args, options); }

void gather_next_token(const GatherNextTokenArgs& a, const LaunchOptions& options) {
  const int64_t rows = a.is_speculative ? a.row_capacity : a.slots;
  launch_items(options, rows, 8, gather_next_token_kernel, a.x, a.cu_seqlens_q, a.cu_seqlens_q_output,
               a.batch_id_per_token_output, a.seq_lens_this_time, a.seq_lens_encoder, a.out, a.slots, a.capacity, rows,
               a.row_bytes, a.is_speculative, a.prefill_first);
}

}  // namespace specdec::xpu
