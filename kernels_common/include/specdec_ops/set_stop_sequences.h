// Arguments of set_stop_sequences.
#pragma once

#include <cstdint>

namespace specdec {

struct SetStopSequencesArgs {
  const int64_t* token_ids_all;   // [M, L]
  const int64_t* prompt_lens;     // [M]
  const int64_t* step_idx;        // [M]
  const int64_t* min_dec_len;     // [M]
  const int64_t* stop_seqs;       // [M, Q, Z]
  const int32_t* stop_seqs_lens;  // [M, Q]
  int64_t* accept_tokens;         // [M, S]
  int32_t* accept_num;            // [M]
  int64_t* max_dec_len;           // [M]
  int64_t M, L, Q, Z, S;
};

}  // namespace specdec
