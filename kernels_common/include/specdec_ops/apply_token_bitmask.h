// Arguments of apply_token_bitmask (contract, section 10).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct ApplyTokenBitmaskArgs {
  void* logits;  // [R_cap, V]
  const int32_t* bitmask;  // [U, Y]
  const int32_t* bitmask_rows;  // [R_cap]
  FloatType logits_type;
  int64_t R_cap, V, U, Y;
  int32_t vocab_size;
  int32_t first_token;
};

// clang-format off
namespace detail::apply_token_bitmask {
struct Tables {
  using Args = ApplyTokenBitmaskArgs;
  enum : int { R_cap, V, U, Y };
  enum : int { vocab_size, first_token };
  static constexpr SymbolInfo symbols[] = {
      {"R_cap", 0, INT64_MAX, offsetof(Args, R_cap)},
      {"V", 1, 16777215, offsetof(Args, V)},
      {"U", 0, INT64_MAX, offsetof(Args, U)},
      {"Y", 1, INT64_MAX, offsetof(Args, Y)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"logits", Cell::kFloat, Access::kWrite, offsetof(Args, logits), {{R_cap}, {V}}}
          .with(offsetof(Args, logits_type)),
      OperandInfo{"bitmask", Cell::kInt32, Access::kRead, offsetof(Args, bitmask), {{U}, {Y}}},
      OperandInfo{"bitmask_rows", Cell::kInt32, Access::kRead, offsetof(Args, bitmask_rows), {{R_cap}}},
  };
  static constexpr AttributeInfo attributes[] = {
      {"vocab_size", 0, 16777215, offsetof(Args, vocab_size), 4},
      {"first_token", 0, 16777215, offsetof(Args, first_token), 4},
  };
  static constexpr List<Order> symbol_orders = {};
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "apply_token_bitmask", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::apply_token_bitmask

inline constexpr OpOf<ApplyTokenBitmaskArgs> apply_token_bitmask_signature = {
    detail::apply_token_bitmask::Tables::signature};
// clang-format on

}  // namespace specdec
