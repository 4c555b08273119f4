// Arguments of verify_draft_tokens (contract, section 4).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec/flag.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct VerifyDraftTokensArgs {
  const int64_t* draft_tokens;  // [M, S]
  const int64_t* target_tokens;  // [R_cap], null unless strategy is GREEDY or TARGET_MATCH
  const int64_t* candidate_ids;  // [R_cap, C], null unless strategy is TOPP
  const float* candidate_scores;  // [R_cap, C], null unless strategy is TOPP
  const int32_t* candidate_lens;  // [R_cap], null unless strategy is TOPP
  const float* top_p;  // [M], null unless strategy is TOPP
  const float* target_probs;  // [R_cap, V], null unless strategy is REJECTION
  const float* draft_probs;  // [M, S-1, V], null unless strategy is REJECTION, may be null
  const int64_t* seed;  // [M]
  const int64_t* prompt_lens;  // [M]
  const int64_t* step_idx;  // [M]
  const int64_t* max_dec_len;  // [M]
  const Flag* stop_flags;  // [M]
  const Flag* is_block_step;  // [M]
  const int32_t* seq_lens_encoder;  // [M]
  const int32_t* seq_lens_decoder;  // [M]
  const int32_t* seq_lens_this_time;  // [B]
  const int32_t* cu_seqlens_q_output;  // [B+1]
  const int32_t* reasoning_status;  // [M]
  const int64_t* end_tokens;  // [E]
  int64_t* accept_tokens;  // [M, S]
  int32_t* accept_num;  // [M]
  int64_t M, S, R_cap, C, V, B, E;
  int64_t verify_window;
  Strategy strategy;
  AcceptPolicy accept_policy;
  bool end_at_limit;
};

// clang-format off
namespace detail::verify_draft_tokens {
struct Tables {
  using Args = VerifyDraftTokensArgs;
  enum : int { M, S, R_cap, C, V, B, E };
  enum : int { strategy, verify_window, accept_policy, end_at_limit };
  static constexpr SymbolInfo symbols[] = {
      {"M", 1, INT64_MAX, offsetof(Args, M)},
      {"S", 1, INT64_MAX, offsetof(Args, S)},
      {"R_cap", 0, INT64_MAX, offsetof(Args, R_cap)},
      {"C", 1, INT64_MAX, offsetof(Args, C)},
      {"V", 1, 16777215, offsetof(Args, V)},
      {"B", 0, INT64_MAX, offsetof(Args, B)},
      {"E", 0, INT64_MAX, offsetof(Args, E)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"draft_tokens", Cell::kInt64, Access::kRead, offsetof(Args, draft_tokens), {{M}, {S}}},
      OperandInfo{"target_tokens", Cell::kInt64, Access::kRead, offsetof(Args, target_tokens), {{R_cap}}}
          .only_if(strategy, 0b11),
      OperandInfo{"candidate_ids", Cell::kInt64, Access::kRead, offsetof(Args, candidate_ids), {{R_cap}, {C}}}
          .only_if(strategy, 0b100),
      OperandInfo{"candidate_scores", Cell::kFloat32, Access::kRead, offsetof(Args, candidate_scores), {{R_cap}, {C}}}
          .only_if(strategy, 0b100),
      OperandInfo{"candidate_lens", Cell::kInt32, Access::kRead, offsetof(Args, candidate_lens), {{R_cap}}}
          .only_if(strategy, 0b100),
      OperandInfo{"top_p", Cell::kFloat32, Access::kRead, offsetof(Args, top_p), {{M}}}.only_if(strategy, 0b100),
      OperandInfo{"target_probs", Cell::kFloat32, Access::kRead, offsetof(Args, target_probs), {{R_cap}, {V}}}
          .only_if(strategy, 0b1000),
      OperandInfo{"draft_probs", Cell::kFloat32, Access::kRead, offsetof(Args, draft_probs), {{M}, {S, -1}, {V}}}
          .or_null()
          .only_if(strategy, 0b1000),
      OperandInfo{"seed", Cell::kInt64, Access::kRead, offsetof(Args, seed), {{M}}},
      OperandInfo{"prompt_lens", Cell::kInt64, Access::kRead, offsetof(Args, prompt_lens), {{M}}},
      OperandInfo{"step_idx", Cell::kInt64, Access::kRead, offsetof(Args, step_idx), {{M}}},
      OperandInfo{"max_dec_len", Cell::kInt64, Access::kRead, offsetof(Args, max_dec_len), {{M}}},
      OperandInfo{"stop_flags", Cell::kBool, Access::kRead, offsetof(Args, stop_flags), {{M}}},
      OperandInfo{"is_block_step", Cell::kBool, Access::kRead, offsetof(Args, is_block_step), {{M}}},
      OperandInfo{"seq_lens_encoder", Cell::kInt32, Access::kRead, offsetof(Args, seq_lens_encoder), {{M}}},
      OperandInfo{"seq_lens_decoder", Cell::kInt32, Access::kRead, offsetof(Args, seq_lens_decoder), {{M}}},
      OperandInfo{"seq_lens_this_time", Cell::kInt32, Access::kRead, offsetof(Args, seq_lens_this_time), {{B}}},
      OperandInfo{"cu_seqlens_q_output", Cell::kInt32, Access::kRead, offsetof(Args, cu_seqlens_q_output), {{B, 1}}},
      OperandInfo{"reasoning_status", Cell::kInt32, Access::kRead, offsetof(Args, reasoning_status), {{M}}},
      OperandInfo{"end_tokens", Cell::kInt64, Access::kRead, offsetof(Args, end_tokens), {{E}}},
      OperandInfo{"accept_tokens", Cell::kInt64, Access::kWrite, offsetof(Args, accept_tokens), {{M}, {S}}},
      OperandInfo{"accept_num", Cell::kInt32, Access::kWrite, offsetof(Args, accept_num), {{M}}},
  };
  static constexpr AttributeInfo attributes[] = {
      {"strategy", 0, 3, offsetof(Args, strategy), 4},
      {"verify_window", 1, INT64_MAX, offsetof(Args, verify_window), 8},
      {"accept_policy", 0, 2, offsetof(Args, accept_policy), 4},
      {"end_at_limit", 0, 1, offsetof(Args, end_at_limit), 1},
  };
  static constexpr Order symbol_orders[] = {
      {B, M},
  };
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "verify_draft_tokens", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::verify_draft_tokens

inline constexpr OpOf<VerifyDraftTokensArgs> verify_draft_tokens_signature = {
    detail::verify_draft_tokens::Tables::signature};
// clang-format on

}  // namespace specdec
