// Arguments of adjust_batch (contract, section 2).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct AdjustBatchArgs {
  const char* x;  // [T_cap, D]
  const int32_t* cu_seqlens_q;  // [B+1]
  const int32_t* seq_lens_this_time;  // [B]
  const int32_t* seq_lens_encoder;  // [M]
  char* out;  // [T_cap, D]
  int64_t x_row_bytes;
  int64_t T_cap, D, B, M;
  TokenOrder token_order;
};

// clang-format off
namespace detail::adjust_batch {
struct Tables {
  using Args = AdjustBatchArgs;
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
      "adjust_batch", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::adjust_batch

inline constexpr OpOf<AdjustBatchArgs> adjust_batch_signature = {
    detail::adjust_batch::Tables::signature};
// clang-format on

}  // namespace specdec
