// Arguments of gather_accepted (contract, section 7).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct GatherAcceptedArgs {
  const void* logits;  // [R_cap, V]
  const int64_t* accept_tokens;  // [M, S]
  const int32_t* accept_num;  // [M]
  const int32_t* cu_seqlens_q_output;  // [B+1]
  const int32_t* seq_lens_encoder;  // [M]
  const int32_t* seq_lens_this_time;  // [B]
  int64_t* token_ids;  // [A_cap]
  int32_t* rows;  // [A_cap]
  int32_t* cu_batch_token_offset;  // [B+1]
  FloatType logits_type;
  int64_t R_cap, V, M, S, B, A_cap;
};

// clang-format off
namespace detail::gather_accepted {
struct Tables {
  using Args = GatherAcceptedArgs;
  enum : int { R_cap, V, M, S, B, A_cap };
  static constexpr SymbolInfo symbols[] = {
      {"R_cap", 0, INT64_MAX, offsetof(Args, R_cap)},
      {"V", 1, 16777215, offsetof(Args, V)},
      {"M", 1, INT64_MAX, offsetof(Args, M)},
      {"S", 1, INT64_MAX, offsetof(Args, S)},
      {"B", 0, INT64_MAX, offsetof(Args, B)},
      {"A_cap", 0, INT64_MAX, offsetof(Args, A_cap)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"logits", Cell::kFloat, Access::kRead, offsetof(Args, logits), {{R_cap}, {V}}}
          .with(offsetof(Args, logits_type)),
      OperandInfo{"accept_tokens", Cell::kInt64, Access::kRead, offsetof(Args, accept_tokens), {{M}, {S}}},
      OperandInfo{"accept_num", Cell::kInt32, Access::kRead, offsetof(Args, accept_num), {{M}}},
      OperandInfo{"cu_seqlens_q_output", Cell::kInt32, Access::kRead, offsetof(Args, cu_seqlens_q_output), {{B, 1}}},
      OperandInfo{"seq_lens_encoder", Cell::kInt32, Access::kRead, offsetof(Args, seq_lens_encoder), {{M}}},
      OperandInfo{"seq_lens_this_time", Cell::kInt32, Access::kRead, offsetof(Args, seq_lens_this_time), {{B}}},
      OperandInfo{"token_ids", Cell::kInt64, Access::kWrite, offsetof(Args, token_ids), {{A_cap}}},
      OperandInfo{"rows", Cell::kInt32, Access::kWrite, offsetof(Args, rows), {{A_cap}}},
      OperandInfo{"cu_batch_token_offset", Cell::kInt32, Access::kWrite,
                  offsetof(Args, cu_batch_token_offset), {{B, 1}}},
  };
  static constexpr List<AttributeInfo> attributes = {};
  static constexpr Order symbol_orders[] = {
      {B, M},
  };
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "gather_accepted", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::gather_accepted

inline constexpr OpOf<GatherAcceptedArgs> gather_accepted_signature = {
    detail::gather_accepted::Tables::signature};
// clang-format on

}  // namespace specdec
