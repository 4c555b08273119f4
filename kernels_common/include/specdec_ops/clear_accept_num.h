// Arguments of clear_accept_num (contract, section 8).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct ClearAcceptNumArgs {
  int32_t* accept_num;  // [M]
  const int32_t* seq_lens_decoder;  // [M]
  int64_t M;
};

// clang-format off
namespace detail::clear_accept_num {
struct Tables {
  using Args = ClearAcceptNumArgs;
  enum : int { M };
  static constexpr SymbolInfo symbols[] = {
      {"M", 1, INT64_MAX, offsetof(Args, M)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"accept_num", Cell::kInt32, Access::kWrite, offsetof(Args, accept_num), {{M}}},
      OperandInfo{"seq_lens_decoder", Cell::kInt32, Access::kRead, offsetof(Args, seq_lens_decoder), {{M}}},
  };
  static constexpr List<AttributeInfo> attributes = {};
  static constexpr List<Order> symbol_orders = {};
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "clear_accept_num", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::clear_accept_num

inline constexpr OpOf<ClearAcceptNumArgs> clear_accept_num_signature = {
    detail::clear_accept_num::Tables::signature};
// clang-format on

}  // namespace specdec
