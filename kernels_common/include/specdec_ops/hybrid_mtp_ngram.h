// Arguments of hybrid_mtp_ngram (contract, section 6).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec_ops/ngram_match.h"
#include "specdec_ops/signature.h"

namespace specdec {

using HybridMtpNgramArgs = NgramMatchArgs;

// clang-format off
namespace detail::hybrid_mtp_ngram {
struct Tables {
  using Args = HybridMtpNgramArgs;
  enum : int { M, L, S, B, X, P };
  enum : int {
      max_ngram_size, min_ngram_size, token_budget, match_policy, pad_to_max, use_draft_token_num, skip_last,
      continue_cycles
  };
  static constexpr SymbolInfo symbols[] = {
      {"M", 1, INT64_MAX, offsetof(Args, M)},
      {"L", 1, INT64_MAX, offsetof(Args, L)},
      {"S", 1, INT64_MAX, offsetof(Args, S)},
      {"B", 0, INT64_MAX, offsetof(Args, B)},
      {"X", 0, INT64_MAX, offsetof(Args, X)},
      {"P", 0, INT64_MAX, offsetof(Args, P)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"token_ids_all", Cell::kInt64, Access::kRead, offsetof(Args, token_ids_all), {{M}, {L}}},
      OperandInfo{"prompt_lens", Cell::kInt64, Access::kRead, offsetof(Args, prompt_lens), {{M}}},
      OperandInfo{"step_idx", Cell::kInt64, Access::kRead, offsetof(Args, step_idx), {{M}}},
      OperandInfo{"draft_token_num", Cell::kInt32, Access::kRead, offsetof(Args, draft_token_num), {{M}}},
      OperandInfo{"seq_lens_encoder", Cell::kInt32, Access::kRead, offsetof(Args, seq_lens_encoder), {{M}}},
      OperandInfo{"seq_lens_decoder", Cell::kInt32, Access::kRead, offsetof(Args, seq_lens_decoder), {{M}}},
      OperandInfo{"max_dec_len", Cell::kInt64, Access::kRead, offsetof(Args, max_dec_len), {{M}}},
      OperandInfo{"draft_tokens", Cell::kInt64, Access::kWrite, offsetof(Args, draft_tokens), {{M}, {S}}},
      OperandInfo{"seq_lens_this_time", Cell::kInt32, Access::kWrite, offsetof(Args, seq_lens_this_time), {{B}}},
      OperandInfo{"index", Cell::kUint8, Access::kWrite, offsetof(Args, index), {{M}, {X}}}.or_null(),
      OperandInfo{"pre_ids", Cell::kInt64, Access::kRead, offsetof(Args, pre_ids), {{M}, {P}}}.or_null(),
  };
  static constexpr AttributeInfo attributes[] = {
      {"max_ngram_size", 1, 16, offsetof(Args, max_ngram_size), 4},
      {"min_ngram_size", 1, 16, offsetof(Args, min_ngram_size), 4},
      {"token_budget", 0, INT64_MAX, offsetof(Args, token_budget), 8},
      {"match_policy", 0, 1, offsetof(Args, match_policy), 4},
      {"pad_to_max", 0, 1, offsetof(Args, pad_to_max), 1},
      {"use_draft_token_num", 0, 1, offsetof(Args, use_draft_token_num), 1},
      {"skip_last", 0, 1, offsetof(Args, skip_last), 1},
      {"continue_cycles", 0, 1, offsetof(Args, continue_cycles), 1},
  };
  static constexpr Order symbol_orders[] = {
      {B, M},
  };
  static constexpr Order attribute_orders[] = {
      {min_ngram_size, max_ngram_size},
  };
  static constexpr OpSignature signature = {
      "hybrid_mtp_ngram", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::hybrid_mtp_ngram

inline constexpr OpOf<HybridMtpNgramArgs> hybrid_mtp_ngram_signature = {
    detail::hybrid_mtp_ngram::Tables::signature};
// clang-format on

}  // namespace specdec
