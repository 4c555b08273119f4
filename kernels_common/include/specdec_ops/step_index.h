// Arguments of prepare_inputs, adjust_batch, recover_batch and gather_next_token.
#pragma once

#include <cstdint>

namespace specdec {

struct PrepareInputsArgs {
  const int64_t *input_ids, *draft_tokens;                                        // [M, input_width], [M, draft_width]
  const int32_t *seq_lens_this_time, *seq_lens_encoder, *seq_lens_decoder;        // [slots], [M], [M]
  int64_t* ids_remove_padding;                                                    // [token_capacity]
  int32_t *batch_id_per_token, *cu_seqlens_q, *cu_seqlens_k, *cu_seqlens_q_output;  // [slots + 1] the last three
  int32_t *batch_id_per_token_output, *num_tokens;                                // [row_capacity], [2]
  int64_t slots, input_width, draft_width, token_capacity, row_capacity;
};

// Rows are moved as bytes.
struct PermuteRowsArgs {
  const char* x;                                                            // [capacity, row_bytes]
  const int32_t *cu_seqlens_q, *seq_lens_this_time, *seq_lens_encoder;      // [slots + 1], [slots], [M]
  char* out;                                                                // as x
  int64_t slots, capacity, row_bytes;
  bool prefill_first;
};

struct GatherNextTokenArgs {
  const char* x;  // [capacity, row_bytes]
  const int32_t *cu_seqlens_q, *cu_seqlens_q_output, *batch_id_per_token_output, *seq_lens_this_time, *seq_lens_encoder;
  char* out;      // [out_rows, row_bytes]
  int64_t slots, capacity, row_capacity, row_bytes;
  bool is_speculative, prefill_first;
};

}  // namespace specdec
