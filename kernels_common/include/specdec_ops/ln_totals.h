// Arguments of ln_totals (contract, section 3).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct LnTotalsArgs {
  const int64_t* totals;  // [R_cap]
  float* logarithms;  // [R_cap]
  int64_t R_cap;
};

// clang-format off
namespace detail::ln_totals {
struct Tables {
  using Args = LnTotalsArgs;
  enum : int { R_cap };
  static constexpr SymbolInfo symbols[] = {
      {"R_cap", 0, INT64_MAX, offsetof(Args, R_cap)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"totals", Cell::kInt64, Access::kRead, offsetof(Args, totals), {{R_cap}}},
      OperandInfo{"logarithms", Cell::kFloat32, Access::kWrite, offsetof(Args, logarithms), {{R_cap}}},
  };
  static constexpr List<AttributeInfo> attributes = {};
  static constexpr List<Order> symbol_orders = {};
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "ln_totals", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::ln_totals

inline constexpr OpOf<LnTotalsArgs> ln_totals_signature = {
    detail::ln_totals::Tables::signature};
// clang-format on

}  // namespace specdec
