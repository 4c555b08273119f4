// Arguments of update_model_status (contract, section 5).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec/flag.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct UpdateModelStatusArgs {
  int32_t* seq_lens_encoder;  // [M]
  int32_t* seq_lens_decoder;  // [M]
  int32_t* seq_lens_this_time;  // [B]
  Flag* stop_flags;  // [M]
  int64_t* step_idx;  // [M]
  int64_t* token_ids_all;  // [M, L]
  int64_t* draft_tokens;  // [M, S]
  int64_t* accept_tokens;  // [M, S]
  int32_t* accept_num;  // [M]
  Flag* has_running;  // [1]
  const Flag* is_block_step;  // [M]
  const int64_t* prompt_lens;  // [M]
  const int64_t* end_tokens;  // [E]
  const int64_t* max_dec_len;  // [M]
  int64_t M, B, L, S, E;
  bool end_at_limit;
};

// clang-format off
namespace detail::update_model_status {
struct Tables {
  using Args = UpdateModelStatusArgs;
  enum : int { M, B, L, S, E };
  enum : int { end_at_limit };
  static constexpr SymbolInfo symbols[] = {
      {"M", 1, INT64_MAX, offsetof(Args, M)},
      {"B", 0, INT64_MAX, offsetof(Args, B)},
      {"L", 1, INT64_MAX, offsetof(Args, L)},
      {"S", 1, INT64_MAX, offsetof(Args, S)},
      {"E", 0, INT64_MAX, offsetof(Args, E)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"seq_lens_encoder", Cell::kInt32, Access::kWrite, offsetof(Args, seq_lens_encoder), {{M}}},
      OperandInfo{"seq_lens_decoder", Cell::kInt32, Access::kWrite, offsetof(Args, seq_lens_decoder), {{M}}},
      OperandInfo{"seq_lens_this_time", Cell::kInt32, Access::kWrite, offsetof(Args, seq_lens_this_time), {{B}}},
      OperandInfo{"stop_flags", Cell::kBool, Access::kWrite, offsetof(Args, stop_flags), {{M}}},
      OperandInfo{"step_idx", Cell::kInt64, Access::kWrite, offsetof(Args, step_idx), {{M}}},
      OperandInfo{"token_ids_all", Cell::kInt64, Access::kWrite, offsetof(Args, token_ids_all), {{M}, {L}}},
      OperandInfo{"draft_tokens", Cell::kInt64, Access::kWrite, offsetof(Args, draft_tokens), {{M}, {S}}},
      OperandInfo{"accept_tokens", Cell::kInt64, Access::kWrite, offsetof(Args, accept_tokens), {{M}, {S}}},
      OperandInfo{"accept_num", Cell::kInt32, Access::kWrite, offsetof(Args, accept_num), {{M}}},
      OperandInfo{"has_running", Cell::kBool, Access::kWrite, offsetof(Args, has_running), {{kNone, 1}}},
      OperandInfo{"is_block_step", Cell::kBool, Access::kRead, offsetof(Args, is_block_step), {{M}}},
      OperandInfo{"prompt_lens", Cell::kInt64, Access::kRead, offsetof(Args, prompt_lens), {{M}}},
      OperandInfo{"end_tokens", Cell::kInt64, Access::kRead, offsetof(Args, end_tokens), {{E}}},
      OperandInfo{"max_dec_len", Cell::kInt64, Access::kRead, offsetof(Args, max_dec_len), {{M}}},
  };
  static constexpr AttributeInfo attributes[] = {
      {"end_at_limit", 0, 1, offsetof(Args, end_at_limit), 1},
  };
  static constexpr Order symbol_orders[] = {
      {B, M},
  };
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "update_model_status", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::update_model_status

inline constexpr OpOf<UpdateModelStatusArgs> update_model_status_signature = {
    detail::update_model_status::Tables::signature};
// clang-format on

}  // namespace specdec
