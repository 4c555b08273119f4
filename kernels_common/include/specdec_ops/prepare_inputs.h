// Arguments of prepare_inputs (contract, section 1).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct PrepareInputsArgs {
  const int64_t* input_ids;  // [M, I_cap]
  const int64_t* draft_tokens;  // [M, S]
  const int32_t* seq_lens_this_time;  // [B]
  const int32_t* seq_lens_encoder;  // [M]
  const int32_t* seq_lens_decoder;  // [M]
  int64_t* ids_remove_padding;  // [T_cap]
  int32_t* batch_id_per_token;  // [T_cap]
  int32_t* cu_seqlens_q;  // [B+1]
  int32_t* cu_seqlens_k;  // [B+1]
  int32_t* cu_seqlens_q_output;  // [B+1]
  int32_t* batch_id_per_token_output;  // [R_cap]
  int32_t* num_tokens;  // [2]
  int64_t M, I_cap, S, B, T_cap, R_cap;
};

// clang-format off
namespace detail::prepare_inputs {
struct Tables {
  using Args = PrepareInputsArgs;
  enum : int { M, I_cap, S, B, T_cap, R_cap };
  static constexpr SymbolInfo symbols[] = {
      {"M", 1, INT64_MAX, offsetof(Args, M)},
      {"I_cap", 0, INT64_MAX, offsetof(Args, I_cap)},
      {"S", 1, INT64_MAX, offsetof(Args, S)},
      {"B", 0, INT64_MAX, offsetof(Args, B)},
      {"T_cap", 0, INT64_MAX, offsetof(Args, T_cap)},
      {"R_cap", 0, INT64_MAX, offsetof(Args, R_cap)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"input_ids", Cell::kInt64, Access::kRead, offsetof(Args, input_ids), {{M}, {I_cap}}},
      OperandInfo{"draft_tokens", Cell::kInt64, Access::kRead, offsetof(Args, draft_tokens), {{M}, {S}}},
      OperandInfo{"seq_lens_this_time", Cell::kInt32, Access::kRead, offsetof(Args, seq_lens_this_time), {{B}}},
      OperandInfo{"seq_lens_encoder", Cell::kInt32, Access::kRead, offsetof(Args, seq_lens_encoder), {{M}}},
      OperandInfo{"seq_lens_decoder", Cell::kInt32, Access::kRead, offsetof(Args, seq_lens_decoder), {{M}}},
      OperandInfo{"ids_remove_padding", Cell::kInt64, Access::kWrite, offsetof(Args, ids_remove_padding), {{T_cap}}},
      OperandInfo{"batch_id_per_token", Cell::kInt32, Access::kWrite, offsetof(Args, batch_id_per_token), {{T_cap}}},
      OperandInfo{"cu_seqlens_q", Cell::kInt32, Access::kWrite, offsetof(Args, cu_seqlens_q), {{B, 1}}},
      OperandInfo{"cu_seqlens_k", Cell::kInt32, Access::kWrite, offsetof(Args, cu_seqlens_k), {{B, 1}}},
      OperandInfo{"cu_seqlens_q_output", Cell::kInt32, Access::kWrite, offsetof(Args, cu_seqlens_q_output), {{B, 1}}},
      OperandInfo{"batch_id_per_token_output", Cell::kInt32, Access::kWrite,
                  offsetof(Args, batch_id_per_token_output), {{R_cap}}},
      OperandInfo{"num_tokens", Cell::kInt32, Access::kWrite, offsetof(Args, num_tokens), {{kNone, 2}}},
  };
  static constexpr List<AttributeInfo> attributes = {};
  static constexpr Order symbol_orders[] = {
      {B, M},
  };
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "prepare_inputs", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::prepare_inputs

inline constexpr OpOf<PrepareInputsArgs> prepare_inputs_signature = {
    detail::prepare_inputs::Tables::signature};
// clang-format on

}  // namespace specdec
