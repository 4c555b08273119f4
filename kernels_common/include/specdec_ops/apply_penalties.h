// Arguments of apply_penalties (contract, section 3).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct ApplyPenaltiesArgs {
  void* logits;  // [R_cap, V]
  const int64_t* token_ids_all;  // [M, L]
  const int64_t* prompt_lens;  // [M]
  const int64_t* step_idx;  // [M]
  const int64_t* draft_tokens;  // [M, S]
  const int32_t* cu_seqlens_q_output;  // [B+1]
  const int32_t* batch_id_per_token_output;  // [R_cap]
  const float* repetition;  // [M]
  const float* frequency;  // [M]
  const float* presence;  // [M]
  const int64_t* bad_tokens;  // [M, W]
  const int64_t* end_tokens;  // [E]
  const int64_t* min_dec_len;  // [M]
  FloatType logits_type;
  int64_t R_cap, V, M, L, S, B, W, E;
};

// clang-format off
namespace detail::apply_penalties {
struct Tables {
  using Args = ApplyPenaltiesArgs;
  enum : int { R_cap, V, M, L, S, B, W, E };
  static constexpr SymbolInfo symbols[] = {
      {"R_cap", 0, INT64_MAX, offsetof(Args, R_cap)},
      {"V", 1, 16777215, offsetof(Args, V)},
      {"M", 1, INT64_MAX, offsetof(Args, M)},
      {"L", 1, INT64_MAX, offsetof(Args, L)},
      {"S", 1, INT64_MAX, offsetof(Args, S)},
      {"B", 0, INT64_MAX, offsetof(Args, B)},
      {"W", 0, INT64_MAX, offsetof(Args, W)},
      {"E", 0, INT64_MAX, offsetof(Args, E)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"logits", Cell::kFloat, Access::kWrite, offsetof(Args, logits), {{R_cap}, {V}}}
          .with(offsetof(Args, logits_type)),
      OperandInfo{"token_ids_all", Cell::kInt64, Access::kRead, offsetof(Args, token_ids_all), {{M}, {L}}},
      OperandInfo{"prompt_lens", Cell::kInt64, Access::kRead, offsetof(Args, prompt_lens), {{M}}},
      OperandInfo{"step_idx", Cell::kInt64, Access::kRead, offsetof(Args, step_idx), {{M}}},
      OperandInfo{"draft_tokens", Cell::kInt64, Access::kRead, offsetof(Args, draft_tokens), {{M}, {S}}},
      OperandInfo{"cu_seqlens_q_output", Cell::kInt32, Access::kRead, offsetof(Args, cu_seqlens_q_output), {{B, 1}}},
      OperandInfo{"batch_id_per_token_output", Cell::kInt32, Access::kRead,
                  offsetof(Args, batch_id_per_token_output), {{R_cap}}},
      OperandInfo{"repetition", Cell::kFloat32, Access::kRead, offsetof(Args, repetition), {{M}}},
      OperandInfo{"frequency", Cell::kFloat32, Access::kRead, offsetof(Args, frequency), {{M}}},
      OperandInfo{"presence", Cell::kFloat32, Access::kRead, offsetof(Args, presence), {{M}}},
      OperandInfo{"bad_tokens", Cell::kInt64, Access::kRead, offsetof(Args, bad_tokens), {{M}, {W}}},
      OperandInfo{"end_tokens", Cell::kInt64, Access::kRead, offsetof(Args, end_tokens), {{E}}},
      OperandInfo{"min_dec_len", Cell::kInt64, Access::kRead, offsetof(Args, min_dec_len), {{M}}},
  };
  static constexpr List<AttributeInfo> attributes = {};
  static constexpr Order symbol_orders[] = {
      {B, M},
  };
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "apply_penalties", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::apply_penalties

inline constexpr OpOf<ApplyPenaltiesArgs> apply_penalties_signature = {
    detail::apply_penalties::Tables::signature};
// clang-format on

}  // namespace specdec
