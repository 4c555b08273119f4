// Arguments of reasoning_constraint (contract, section 8).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec/flag.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct ReasoningConstraintArgs {
  void* logits;  // [R_cap, V]
  const int64_t* token_ids_all;  // [M, L]
  const int64_t* prompt_lens;  // [M]
  const Flag* stop_flags;  // [M]
  const int32_t* seq_lens_encoder;  // [M]
  const int64_t* step_idx;  // [M]
  const int64_t* allowed_tokens;  // [H]
  int32_t* reasoning_status;  // [M]
  const int32_t* cu_seqlens_q_output;  // [B+1]
  const Flag* enable_thinking;  // [M]
  int64_t* reasoning_seen;  // [M], may be null
  const int64_t* draft_tokens;  // [M, S], may be null
  FloatType logits_type;
  int64_t R_cap, V, M, L, H, B, S;
  int64_t think_end_id;
  int64_t line_break_id;
};

// clang-format off
namespace detail::reasoning_constraint {
struct Tables {
  using Args = ReasoningConstraintArgs;
  enum : int { R_cap, V, M, L, H, B, S };
  enum : int { think_end_id, line_break_id };
  static constexpr SymbolInfo symbols[] = {
      {"R_cap", 0, INT64_MAX, offsetof(Args, R_cap)},
      {"V", 1, 16777215, offsetof(Args, V)},
      {"M", 1, INT64_MAX, offsetof(Args, M)},
      {"L", 1, INT64_MAX, offsetof(Args, L)},
      {"H", 0, INT64_MAX, offsetof(Args, H)},
      {"B", 0, INT64_MAX, offsetof(Args, B)},
      {"S", 1, INT64_MAX, offsetof(Args, S)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"logits", Cell::kFloat, Access::kWrite, offsetof(Args, logits), {{R_cap}, {V}}}
          .with(offsetof(Args, logits_type)),
      OperandInfo{"token_ids_all", Cell::kInt64, Access::kRead, offsetof(Args, token_ids_all), {{M}, {L}}},
      OperandInfo{"prompt_lens", Cell::kInt64, Access::kRead, offsetof(Args, prompt_lens), {{M}}},
      OperandInfo{"stop_flags", Cell::kBool, Access::kRead, offsetof(Args, stop_flags), {{M}}},
      OperandInfo{"seq_lens_encoder", Cell::kInt32, Access::kRead, offsetof(Args, seq_lens_encoder), {{M}}},
      OperandInfo{"step_idx", Cell::kInt64, Access::kRead, offsetof(Args, step_idx), {{M}}},
      OperandInfo{"allowed_tokens", Cell::kInt64, Access::kRead, offsetof(Args, allowed_tokens), {{H}}},
      OperandInfo{"reasoning_status", Cell::kInt32, Access::kWrite, offsetof(Args, reasoning_status), {{M}}},
      OperandInfo{"cu_seqlens_q_output", Cell::kInt32, Access::kRead, offsetof(Args, cu_seqlens_q_output), {{B, 1}}},
      OperandInfo{"enable_thinking", Cell::kBool, Access::kRead, offsetof(Args, enable_thinking), {{M}}},
      OperandInfo{"reasoning_seen", Cell::kInt64, Access::kWrite, offsetof(Args, reasoning_seen), {{M}}}.or_null(),
      OperandInfo{"draft_tokens", Cell::kInt64, Access::kRead, offsetof(Args, draft_tokens), {{M}, {S}}}.or_null(),
  };
  static constexpr AttributeInfo attributes[] = {
      {"think_end_id", INT64_MIN, INT64_MAX, offsetof(Args, think_end_id), 8},
      {"line_break_id", INT64_MIN, INT64_MAX, offsetof(Args, line_break_id), 8},
  };
  static constexpr Order symbol_orders[] = {
      {B, M},
  };
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "reasoning_constraint", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::reasoning_constraint

inline constexpr OpOf<ReasoningConstraintArgs> reasoning_constraint_signature = {
    detail::reasoning_constraint::Tables::signature};
// clang-format on

}  // namespace specdec
