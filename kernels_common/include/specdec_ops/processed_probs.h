// Arguments of processed_probs (contract, section 3).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct ProcessedProbsArgs {
  const void* logits;  // [R_cap, V]
  const float* row_temperature;  // [R_cap]
  const float* row_top_p;  // [R_cap]
  const int32_t* row_top_k;  // [R_cap]
  const float* row_min_p;  // [R_cap]
  const int64_t* position;  // [R_cap]
  float* probs;  // [R_cap, V]
  FloatType logits_type;
  int64_t R_cap, V;
};

// clang-format off
namespace detail::processed_probs {
struct Tables {
  using Args = ProcessedProbsArgs;
  enum : int { R_cap, V };
  static constexpr SymbolInfo symbols[] = {
      {"R_cap", 0, INT64_MAX, offsetof(Args, R_cap)},
      {"V", 1, 16777215, offsetof(Args, V)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"logits", Cell::kFloat, Access::kRead, offsetof(Args, logits), {{R_cap}, {V}}}
          .with(offsetof(Args, logits_type)),
      OperandInfo{"row_temperature", Cell::kFloat32, Access::kRead, offsetof(Args, row_temperature), {{R_cap}}},
      OperandInfo{"row_top_p", Cell::kFloat32, Access::kRead, offsetof(Args, row_top_p), {{R_cap}}},
      OperandInfo{"row_top_k", Cell::kInt32, Access::kRead, offsetof(Args, row_top_k), {{R_cap}}},
      OperandInfo{"row_min_p", Cell::kFloat32, Access::kRead, offsetof(Args, row_min_p), {{R_cap}}},
      OperandInfo{"position", Cell::kInt64, Access::kRead, offsetof(Args, position), {{R_cap}}},
      OperandInfo{"probs", Cell::kFloat32, Access::kWrite, offsetof(Args, probs), {{R_cap}, {V}}},
  };
  static constexpr List<AttributeInfo> attributes = {};
  static constexpr List<Order> symbol_orders = {};
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "processed_probs", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::processed_probs

inline constexpr OpOf<ProcessedProbsArgs> processed_probs_signature = {
    detail::processed_probs::Tables::signature};
// clang-format on

}  // namespace specdec
