// Arguments of insert_first_token (contract, section 7).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct InsertFirstTokenArgs {
  const int64_t* accept_tokens;  // [M, S]
  const int64_t* next_tokens;  // [R_cap]
  const int32_t* seq_lens_this_time;  // [B]
  const int32_t* seq_lens_encoder;  // [M]
  int64_t* draft_token_ids;  // [D_cap]
  int64_t M, S, R_cap, B, D_cap;
};

// clang-format off
namespace detail::insert_first_token {
struct Tables {
  using Args = InsertFirstTokenArgs;
  enum : int { M, S, R_cap, B, D_cap };
  static constexpr SymbolInfo symbols[] = {
      {"M", 1, INT64_MAX, offsetof(Args, M)},
      {"S", 1, INT64_MAX, offsetof(Args, S)},
      {"R_cap", 0, INT64_MAX, offsetof(Args, R_cap)},
      {"B", 0, INT64_MAX, offsetof(Args, B)},
      {"D_cap", 0, INT64_MAX, offsetof(Args, D_cap)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"accept_tokens", Cell::kInt64, Access::kRead, offsetof(Args, accept_tokens), {{M}, {S}}},
      OperandInfo{"next_tokens", Cell::kInt64, Access::kRead, offsetof(Args, next_tokens), {{R_cap}}},
      OperandInfo{"seq_lens_this_time", Cell::kInt32, Access::kRead, offsetof(Args, seq_lens_this_time), {{B}}},
      OperandInfo{"seq_lens_encoder", Cell::kInt32, Access::kRead, offsetof(Args, seq_lens_encoder), {{M}}},
      OperandInfo{"draft_token_ids", Cell::kInt64, Access::kWrite, offsetof(Args, draft_token_ids), {{D_cap}}},
  };
  static constexpr List<AttributeInfo> attributes = {};
  static constexpr Order symbol_orders[] = {
      {B, M},
  };
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "insert_first_token", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::insert_first_token

inline constexpr OpOf<InsertFirstTokenArgs> insert_first_token_signature = {
    detail::insert_first_token::Tables::signature};
// clang-format on

}  // namespace specdec
