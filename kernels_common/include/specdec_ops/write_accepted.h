// Arguments of write_accepted (contract, section 8).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec/flag.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct WriteAcceptedArgs {
  int64_t* token_ids_all;  // [M, L]
  const int64_t* prompt_lens;  // [M]
  const int64_t* accept_tokens;  // [M, S]
  const int32_t* accept_num;  // [M]
  const Flag* stop_flags;  // [M]
  const int32_t* seq_lens_this_time;  // [B]
  const int32_t* seq_lens_encoder;  // [M]
  const int32_t* seq_lens_decoder;  // [M]
  const int64_t* step_idx;  // [M]
  int64_t M, L, S, B;
  bool last_index;
};

// clang-format off
namespace detail::write_accepted {
struct Tables {
  using Args = WriteAcceptedArgs;
  enum : int { M, L, S, B };
  enum : int { last_index };
  static constexpr SymbolInfo symbols[] = {
      {"M", 1, INT64_MAX, offsetof(Args, M)},
      {"L", 1, INT64_MAX, offsetof(Args, L)},
      {"S", 1, INT64_MAX, offsetof(Args, S)},
      {"B", 0, INT64_MAX, offsetof(Args, B)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"token_ids_all", Cell::kInt64, Access::kWrite, offsetof(Args, token_ids_all), {{M}, {L}}},
      OperandInfo{"prompt_lens", Cell::kInt64, Access::kRead, offsetof(Args, prompt_lens), {{M}}},
      OperandInfo{"accept_tokens", Cell::kInt64, Access::kRead, offsetof(Args, accept_tokens), {{M}, {S}}},
      OperandInfo{"accept_num", Cell::kInt32, Access::kRead, offsetof(Args, accept_num), {{M}}},
      OperandInfo{"stop_flags", Cell::kBool, Access::kRead, offsetof(Args, stop_flags), {{M}}},
      OperandInfo{"seq_lens_this_time", Cell::kInt32, Access::kRead, offsetof(Args, seq_lens_this_time), {{B}}},
      OperandInfo{"seq_lens_encoder", Cell::kInt32, Access::kRead, offsetof(Args, seq_lens_encoder), {{M}}},
      OperandInfo{"seq_lens_decoder", Cell::kInt32, Access::kRead, offsetof(Args, seq_lens_decoder), {{M}}},
      OperandInfo{"step_idx", Cell::kInt64, Access::kRead, offsetof(Args, step_idx), {{M}}},
  };
  static constexpr AttributeInfo attributes[] = {
      {"last_index", 0, 1, offsetof(Args, last_index), 1},
  };
  static constexpr Order symbol_orders[] = {
      {B, M},
  };
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "write_accepted", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::write_accepted

inline constexpr OpOf<WriteAcceptedArgs> write_accepted_signature = {
    detail::write_accepted::Tables::signature};
// clang-format on

}  // namespace specdec
