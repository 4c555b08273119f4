// Arguments of limit_thinking (contract, section 8).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec/flag.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct LimitThinkingArgs {
  const int64_t* step_idx;  // [M]
  const int32_t* max_think_lens;  // [M]
  int32_t* max_reply_lens;  // [M]
  const Flag* stop_flags;  // [M]
  const int64_t* end_tokens;  // [E]
  const int64_t* inject_token_ids;  // [J]
  int64_t* accept_tokens;  // [M, S]
  int32_t* accept_num;  // [M]
  int32_t* limit_status;  // [M]
  int64_t M, E, J, S;
  int64_t think_end_id;
  bool fastdeploy;
  bool keep_tail;
};

// clang-format off
namespace detail::limit_thinking {
struct Tables {
  using Args = LimitThinkingArgs;
  enum : int { M, E, J, S };
  enum : int { think_end_id, fastdeploy, keep_tail };
  static constexpr SymbolInfo symbols[] = {
      {"M", 1, INT64_MAX, offsetof(Args, M)},
      {"E", 0, INT64_MAX, offsetof(Args, E)},
      {"J", 0, INT64_MAX, offsetof(Args, J)},
      {"S", 1, INT64_MAX, offsetof(Args, S)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"step_idx", Cell::kInt64, Access::kRead, offsetof(Args, step_idx), {{M}}},
      OperandInfo{"max_think_lens", Cell::kInt32, Access::kRead, offsetof(Args, max_think_lens), {{M}}},
      OperandInfo{"max_reply_lens", Cell::kInt32, Access::kWrite, offsetof(Args, max_reply_lens), {{M}}},
      OperandInfo{"stop_flags", Cell::kBool, Access::kRead, offsetof(Args, stop_flags), {{M}}},
      OperandInfo{"end_tokens", Cell::kInt64, Access::kRead, offsetof(Args, end_tokens), {{E}}},
      OperandInfo{"inject_token_ids", Cell::kInt64, Access::kRead, offsetof(Args, inject_token_ids), {{J}}},
      OperandInfo{"accept_tokens", Cell::kInt64, Access::kWrite, offsetof(Args, accept_tokens), {{M}, {S}}},
      OperandInfo{"accept_num", Cell::kInt32, Access::kWrite, offsetof(Args, accept_num), {{M}}},
      OperandInfo{"limit_status", Cell::kInt32, Access::kWrite, offsetof(Args, limit_status), {{M}}},
  };
  static constexpr AttributeInfo attributes[] = {
      {"think_end_id", INT64_MIN, INT64_MAX, offsetof(Args, think_end_id), 8},
      {"fastdeploy", 0, 1, offsetof(Args, fastdeploy), 1},
      {"keep_tail", 0, 1, offsetof(Args, keep_tail), 1},
  };
  static constexpr List<Order> symbol_orders = {};
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "limit_thinking", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::limit_thinking

inline constexpr OpOf<LimitThinkingArgs> limit_thinking_signature = {
    detail::limit_thinking::Tables::signature};
// clang-format on

}  // namespace specdec
