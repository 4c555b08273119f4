// Arguments of schedule_slots.
#pragma once

#include <cstdint>

namespace specdec {

struct ScheduleSlotsArgs {
  const int32_t* slot_actions;    // [M]
  const int32_t* chunk_lens;      // [M]
  const int32_t* chunk_starts;    // [M]
  const int64_t* chunk_step_idx;  // [M]
  const int64_t* token_ids_all;   // [M, L]
  int32_t* seq_lens_encoder;      // [M]
  int32_t* seq_lens_decoder;      // [M]
  int32_t* seq_lens_this_time;    // [B]
  int64_t* step_idx;              // [M]
  bool* stop_flags;               // [M]
  bool* is_block_step;            // [M]
  int64_t* input_ids;             // [M, I_cap]
  int64_t M, L, B, I_cap;
};

}  // namespace specdec
