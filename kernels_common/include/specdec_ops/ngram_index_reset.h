// Arguments of ngram_index_reset (contract, section 6).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec/flag.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct NgramIndexResetArgs {
  uint8_t* index;  // [M, X]
  const Flag* reset_slots;  // [M]
  int64_t M, X;
};

// clang-format off
namespace detail::ngram_index_reset {
struct Tables {
  using Args = NgramIndexResetArgs;
  enum : int { M, X };
  static constexpr SymbolInfo symbols[] = {
      {"M", 1, INT64_MAX, offsetof(Args, M)},
      {"X", 0, INT64_MAX, offsetof(Args, X)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"index", Cell::kUint8, Access::kWrite, offsetof(Args, index), {{M}, {X}}},
      OperandInfo{"reset_slots", Cell::kBool, Access::kRead, offsetof(Args, reset_slots), {{M}}},
  };
  static constexpr List<AttributeInfo> attributes = {};
  static constexpr List<Order> symbol_orders = {};
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "ngram_index_reset", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::ngram_index_reset

inline constexpr OpOf<NgramIndexResetArgs> ngram_index_reset_signature = {
    detail::ngram_index_reset::Tables::signature};
// clang-format on

}  // namespace specdec
