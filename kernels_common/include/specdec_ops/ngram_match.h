// Arguments of ngram_match (contract, section 6).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct NgramMatchArgs {
  const int64_t* token_ids_all;  // [M, L]
  const int64_t* prompt_lens;  // [M]
  const int64_t* step_idx;  // [M]
  const int32_t* draft_token_num;  // [M]
  const int32_t* seq_lens_encoder;  // [M]
  const int32_t* seq_lens_decoder;  // [M]
  const int64_t* max_dec_len;  // [M]
  int64_t* draft_tokens;  // [M, S]
  int32_t* seq_lens_this_time;  // [B]
  uint8_t* index;  // [M, X], may be null
  const int64_t* pre_ids;  // [M, P], may be null
  int64_t M, L, S, B, X, P;
  int64_t token_budget;
  int32_t max_ngram_size;
  int32_t min_ngram_size;
  MatchPolicy match_policy;
  bool pad_to_max;
  bool use_draft_token_num;
  bool skip_last;
  bool continue_cycles;
};

// clang-format off
namespace detail::ngram_match {
struct Tables {
  using Args = NgramMatchArgs;
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
      "ngram_match", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::ngram_match

inline constexpr OpOf<NgramMatchArgs> ngram_match_signature = {
    detail::ngram_match::Tables::signature};
// clang-format on

}  // namespace specdec
