// Arguments of token_logprobs (contract, section 7).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct TokenLogprobsArgs {
  const void* logits;  // [R_cap, V]
  const int32_t* rows;  // [A_cap]
  const int64_t* token_ids;  // [A_cap]
  const int32_t* cu_batch_token_offset;  // [B+1]
  int64_t* ids;  // [A_cap, N]
  float* logprobs;  // [A_cap, N]
  int64_t* ranks;  // [A_cap]
  FloatType logits_type;
  int64_t R_cap, V, A_cap, B, N;
};

// clang-format off
namespace detail::token_logprobs {
struct Tables {
  using Args = TokenLogprobsArgs;
  enum : int { R_cap, V, A_cap, B, N };
  static constexpr SymbolInfo symbols[] = {
      {"R_cap", 0, INT64_MAX, offsetof(Args, R_cap)},
      {"V", 1, 16777215, offsetof(Args, V)},
      {"A_cap", 0, INT64_MAX, offsetof(Args, A_cap)},
      {"B", 0, INT64_MAX, offsetof(Args, B)},
      {"N", 1, INT64_MAX, offsetof(Args, N)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"logits", Cell::kFloat, Access::kRead, offsetof(Args, logits), {{R_cap}, {V}}}
          .with(offsetof(Args, logits_type)),
      OperandInfo{"rows", Cell::kInt32, Access::kRead, offsetof(Args, rows), {{A_cap}}},
      OperandInfo{"token_ids", Cell::kInt64, Access::kRead, offsetof(Args, token_ids), {{A_cap}}},
      OperandInfo{"cu_batch_token_offset", Cell::kInt32, Access::kRead,
                  offsetof(Args, cu_batch_token_offset), {{B, 1}}},
      OperandInfo{"ids", Cell::kInt64, Access::kWrite, offsetof(Args, ids), {{A_cap}, {N}}},
      OperandInfo{"logprobs", Cell::kFloat32, Access::kWrite, offsetof(Args, logprobs), {{A_cap}, {N}}},
      OperandInfo{"ranks", Cell::kInt64, Access::kWrite, offsetof(Args, ranks), {{A_cap}}},
  };
  static constexpr List<AttributeInfo> attributes = {};
  static constexpr Order symbol_orders[] = {
      {N, V},
  };
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "token_logprobs", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::token_logprobs

inline constexpr OpOf<TokenLogprobsArgs> token_logprobs_signature = {
    detail::token_logprobs::Tables::signature};
// clang-format on

}  // namespace specdec
