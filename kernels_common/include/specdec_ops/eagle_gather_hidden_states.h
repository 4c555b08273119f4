// Arguments of eagle_gather_hidden_states (contract, section 9).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct EagleGatherHiddenStatesArgs {
  const char* x;  // [T_cap, D]
  const int32_t* cu_seqlens_q;  // [B+1]
  char* last_hidden;  // [B, D]
  int32_t* output_token_num;  // [1]
  int64_t x_row_bytes;
  int64_t T_cap, D, B;
};

// clang-format off
namespace detail::eagle_gather_hidden_states {
struct Tables {
  using Args = EagleGatherHiddenStatesArgs;
  enum : int { T_cap, D, B };
  static constexpr SymbolInfo symbols[] = {
      {"T_cap", 0, INT64_MAX, offsetof(Args, T_cap)},
      {"D", 1, INT64_MAX, offsetof(Args, D)},
      {"B", 0, INT64_MAX, offsetof(Args, B)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"x", Cell::kAny, Access::kRead, offsetof(Args, x), {{T_cap}, {D}}}.with(offsetof(Args, x_row_bytes)),
      OperandInfo{"cu_seqlens_q", Cell::kInt32, Access::kRead, offsetof(Args, cu_seqlens_q), {{B, 1}}},
      OperandInfo{"last_hidden", Cell::kAny, Access::kWrite, offsetof(Args, last_hidden), {{B}, {D}}}.like(0),
      OperandInfo{"output_token_num", Cell::kInt32, Access::kWrite, offsetof(Args, output_token_num), {{kNone, 1}}},
  };
  static constexpr List<AttributeInfo> attributes = {};
  static constexpr List<Order> symbol_orders = {};
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "eagle_gather_hidden_states", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::eagle_gather_hidden_states

inline constexpr OpOf<EagleGatherHiddenStatesArgs> eagle_gather_hidden_states_signature = {
    detail::eagle_gather_hidden_states::Tables::signature};
// clang-format on

}  // namespace specdec
