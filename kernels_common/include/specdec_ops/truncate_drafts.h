// Arguments of truncate_drafts (contract, section 10).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct TruncateDraftsArgs {
  const int64_t* draft_tokens;  // [M, S]
  const int32_t* bitmask;  // [U, Y]
  const int32_t* bitmask_rows;  // [R_cap]
  const int32_t* cu_seqlens_q_output;  // [B+1]
  const int32_t* seq_lens_encoder;  // [M]
  int32_t* seq_lens_this_time;  // [B]
  int64_t M, S, U, Y, R_cap, B;
  int32_t vocab_size;
};

// clang-format off
namespace detail::truncate_drafts {
struct Tables {
  using Args = TruncateDraftsArgs;
  enum : int { M, S, U, Y, R_cap, B };
  enum : int { vocab_size };
  static constexpr SymbolInfo symbols[] = {
      {"M", 1, INT64_MAX, offsetof(Args, M)},
      {"S", 1, INT64_MAX, offsetof(Args, S)},
      {"U", 0, INT64_MAX, offsetof(Args, U)},
      {"Y", 1, INT64_MAX, offsetof(Args, Y)},
      {"R_cap", 0, INT64_MAX, offsetof(Args, R_cap)},
      {"B", 0, INT64_MAX, offsetof(Args, B)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"draft_tokens", Cell::kInt64, Access::kRead, offsetof(Args, draft_tokens), {{M}, {S}}},
      OperandInfo{"bitmask", Cell::kInt32, Access::kRead, offsetof(Args, bitmask), {{U}, {Y}}},
      OperandInfo{"bitmask_rows", Cell::kInt32, Access::kRead, offsetof(Args, bitmask_rows), {{R_cap}}},
      OperandInfo{"cu_seqlens_q_output", Cell::kInt32, Access::kRead, offsetof(Args, cu_seqlens_q_output), {{B, 1}}},
      OperandInfo{"seq_lens_encoder", Cell::kInt32, Access::kRead, offsetof(Args, seq_lens_encoder), {{M}}},
      OperandInfo{"seq_lens_this_time", Cell::kInt32, Access::kWrite, offsetof(Args, seq_lens_this_time), {{B}}},
  };
  static constexpr AttributeInfo attributes[] = {
      {"vocab_size", 0, 16777215, offsetof(Args, vocab_size), 4},
  };
  static constexpr Order symbol_orders[] = {
      {B, M},
  };
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "truncate_drafts", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::truncate_drafts

inline constexpr OpOf<TruncateDraftsArgs> truncate_drafts_signature = {
    detail::truncate_drafts::Tables::signature};
// clang-format on

}  // namespace specdec
