// Arguments of gather_next_token (contract, section 2).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct GatherNextTokenArgs {
  const char* x;  // [T_cap, D]
  const int32_t* cu_seqlens_q;  // [B+1]
  const int32_t* cu_seqlens_q_output;  // [B+1]
  const int32_t* batch_id_per_token_output;  // [R_cap]
  const int32_t* seq_lens_this_time;  // [B]
  const int32_t* seq_lens_encoder;  // [M]
  char* out;  // [R_cap, D] if is_speculative is True, [B, D] if is_speculative is False
  int64_t x_row_bytes;
  int64_t T_cap, D, B, R_cap, M;
  TokenOrder token_order;
  bool is_speculative;
};

// clang-format off
namespace detail::gather_next_token {
struct Tables {
  using Args = GatherNextTokenArgs;
  enum : int { T_cap, D, B, R_cap, M };
  enum : int { is_speculative, token_order };
  static constexpr SymbolInfo symbols[] = {
      {"T_cap", 0, INT64_MAX, offsetof(Args, T_cap)},
      {"D", 1, INT64_MAX, offsetof(Args, D)},
      {"B", 0, INT64_MAX, offsetof(Args, B)},
      {"R_cap", 0, INT64_MAX, offsetof(Args, R_cap)},
      {"M", 1, INT64_MAX, offsetof(Args, M)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"x", Cell::kAny, Access::kRead, offsetof(Args, x), {{T_cap}, {D}}}.with(offsetof(Args, x_row_bytes)),
      OperandInfo{"cu_seqlens_q", Cell::kInt32, Access::kRead, offsetof(Args, cu_seqlens_q), {{B, 1}}},
      OperandInfo{"cu_seqlens_q_output", Cell::kInt32, Access::kRead, offsetof(Args, cu_seqlens_q_output), {{B, 1}}},
      OperandInfo{"batch_id_per_token_output", Cell::kInt32, Access::kRead,
                  offsetof(Args, batch_id_per_token_output), {{R_cap}}},
      OperandInfo{"seq_lens_this_time", Cell::kInt32, Access::kRead, offsetof(Args, seq_lens_this_time), {{B}}},
      OperandInfo{"seq_lens_encoder", Cell::kInt32, Access::kRead, offsetof(Args, seq_lens_encoder), {{M}}},
      OperandInfo{"out", Cell::kAny, Access::kWrite, offsetof(Args, out), {{B}, {D}}}
          .shaped(is_speculative, {{R_cap}, {D}})
          .like(0),
  };
  static constexpr AttributeInfo attributes[] = {
      {"is_speculative", 0, 1, offsetof(Args, is_speculative), 1},
      {"token_order", 0, 1, offsetof(Args, token_order), 4},
  };
  static constexpr Order symbol_orders[] = {
      {B, M},
  };
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "gather_next_token", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::gather_next_token

inline constexpr OpOf<GatherNextTokenArgs> gather_next_token_signature = {
    detail::gather_next_token::Tables::signature};
// clang-format on

}  // namespace specdec
