// Arguments of recover_batch (contract, section 2).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec_ops/adjust_batch.h"
#include "specdec_ops/signature.h"

namespace specdec {

using RecoverBatchArgs = AdjustBatchArgs;

// clang-format off
namespace detail::recover_batch {
struct Tables {
  using Args = RecoverBatchArgs;
  enum : int { T_cap, D, B, M };
  enum : int { token_order };
  static constexpr SymbolInfo symbols[] = {
      {"T_cap", 0, INT64_MAX, offsetof(Args, T_cap)},
      {"D", 1, INT64_MAX, offsetof(Args, D)},
      {"B", 0, INT64_MAX, offsetof(Args, B)},
      {"M", 1, INT64_MAX, offsetof(Args, M)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"x", Cell::kAny, Access::kRead, offsetof(Args, x), {{T_cap}, {D}}}.with(offsetof(Args, x_row_bytes)),
      OperandInfo{"cu_seqlens_q", Cell::kInt32, Access::kRead, offsetof(Args, cu_seqlens_q), {{B, 1}}},
      OperandInfo{"seq_lens_this_time", Cell::kInt32, Access::kRead, offsetof(Args, seq_lens_this_time), {{B}}},
      OperandInfo{"seq_lens_encoder", Cell::kInt32, Access::kRead, offsetof(Args, seq_lens_encoder), {{M}}},
      OperandInfo{"out", Cell::kAny, Access::kWrite, offsetof(Args, out), {{T_cap}, {D}}}.like(0),
  };
  static constexpr AttributeInfo attributes[] = {
      {"token_order", 0, 1, offsetof(Args, token_order), 4},
  };
  static constexpr Order symbol_orders[] = {
      {B, M},
  };
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "recover_batch", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::recover_batch

inline constexpr OpOf<RecoverBatchArgs> recover_batch_signature = {
    detail::recover_batch::Tables::signature};
// clang-format on

}  // namespace specdec
