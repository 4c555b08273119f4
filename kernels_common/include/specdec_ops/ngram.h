// Arguments of ngram_match, hybrid_mtp_ngram, ngram_index_update and ngram_index_reset.
#pragma once

#include <cstdint>

namespace specdec {

struct ProposeArgs {
  const int64_t *token_ids_all, *prompt_lens, *step_idx;  // [M, row_width], [M], [M]
  const int32_t *draft_token_num, *seq_lens_encoder, *seq_lens_decoder;
  const int64_t* max_dec_len;
  int64_t* draft_tokens;        // [M, draft_width]
  int32_t* seq_lens_this_time;  // [slots]
  uint8_t* index;               // [M, index_bytes], or null
  int64_t slots, draft_width, row_width, index_bytes, token_budget;
  int max_size, min_size, policy;
  bool hybrid, pad_to_max;
};

struct IndexUpdateArgs {
  uint8_t* index;  // [slots, index_bytes]
  const int64_t *token_ids_all, *prompt_lens, *step_idx;
  const int32_t *seq_lens_encoder, *seq_lens_decoder;
  int64_t slots, row_width, index_bytes;
  int max_size, min_size;
};

struct IndexResetArgs {
  uint8_t* index;  // [slots, index_bytes]
  const bool* reset_slots;
  int64_t slots, index_bytes;
};

}  // namespace specdec
