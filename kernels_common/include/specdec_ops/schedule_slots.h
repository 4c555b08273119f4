// Arguments of schedule_slots (contract, section 8).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec/flag.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct ScheduleSlotsArgs {
  const int32_t* slot_actions;  // [M]
  const int32_t* chunk_lens;  // [M]
  const int32_t* chunk_starts;  // [M]
  const int64_t* chunk_step_idx;  // [M]
  const int64_t* token_ids_all;  // [M, L]
  int32_t* seq_lens_encoder;  // [M]
  int32_t* seq_lens_decoder;  // [M]
  int32_t* seq_lens_this_time;  // [B]
  int64_t* step_idx;  // [M]
  Flag* stop_flags;  // [M]
  Flag* is_block_step;  // [M]
  int64_t* input_ids;  // [M, I_cap]
  int64_t M, L, B, I_cap;
};

// clang-format off
namespace detail::schedule_slots {
struct Tables {
  using Args = ScheduleSlotsArgs;
  enum : int { M, L, B, I_cap };
  static constexpr SymbolInfo symbols[] = {
      {"M", 1, INT64_MAX, offsetof(Args, M)},
      {"L", 1, INT64_MAX, offsetof(Args, L)},
      {"B", 0, INT64_MAX, offsetof(Args, B)},
      {"I_cap", 0, INT64_MAX, offsetof(Args, I_cap)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"slot_actions", Cell::kInt32, Access::kRead, offsetof(Args, slot_actions), {{M}}},
      OperandInfo{"chunk_lens", Cell::kInt32, Access::kRead, offsetof(Args, chunk_lens), {{M}}},
      OperandInfo{"chunk_starts", Cell::kInt32, Access::kRead, offsetof(Args, chunk_starts), {{M}}},
      OperandInfo{"chunk_step_idx", Cell::kInt64, Access::kRead, offsetof(Args, chunk_step_idx), {{M}}},
      OperandInfo{"token_ids_all", Cell::kInt64, Access::kRead, offsetof(Args, token_ids_all), {{M}, {L}}},
      OperandInfo{"seq_lens_encoder", Cell::kInt32, Access::kWrite, offsetof(Args, seq_lens_encoder), {{M}}},
      OperandInfo{"seq_lens_decoder", Cell::kInt32, Access::kWrite, offsetof(Args, seq_lens_decoder), {{M}}},
      OperandInfo{"seq_lens_this_time", Cell::kInt32, Access::kWrite, offsetof(Args, seq_lens_this_time), {{B}}},
      OperandInfo{"step_idx", Cell::kInt64, Access::kWrite, offsetof(Args, step_idx), {{M}}},
      OperandInfo{"stop_flags", Cell::kBool, Access::kWrite, offsetof(Args, stop_flags), {{M}}},
      OperandInfo{"is_block_step", Cell::kBool, Access::kWrite, offsetof(Args, is_block_step), {{M}}},
      OperandInfo{"input_ids", Cell::kInt64, Access::kWrite, offsetof(Args, input_ids), {{M}, {I_cap}}},
  };
  static constexpr List<AttributeInfo> attributes = {};
  static constexpr Order symbol_orders[] = {
      {B, M},
  };
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "schedule_slots", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::schedule_slots

inline constexpr OpOf<ScheduleSlotsArgs> schedule_slots_signature = {
    detail::schedule_slots::Tables::signature};
// clang-format on

}  // namespace specdec
