// Arguments of set_stop_sequences (contract, section 8).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct SetStopSequencesArgs {
  const int64_t* token_ids_all;  // [M, L]
  const int64_t* prompt_lens;  // [M]
  const int64_t* step_idx;  // [M]
  const int64_t* min_dec_len;  // [M]
  const int64_t* stop_seqs;  // [M, Q, Z]
  const int32_t* stop_seqs_lens;  // [M, Q]
  int64_t* accept_tokens;  // [M, S]
  int32_t* accept_num;  // [M]
  int64_t* max_dec_len;  // [M]
  const int64_t* end_tokens;  // [E], may be null
  int64_t M, L, Q, Z, S, E;
  bool end_after_stop;
  bool keep_tail;
};

// clang-format off
namespace detail::set_stop_sequences {
struct Tables {
  using Args = SetStopSequencesArgs;
  enum : int { M, L, Q, Z, S, E };
  enum : int { end_after_stop, keep_tail };
  static constexpr SymbolInfo symbols[] = {
      {"M", 1, INT64_MAX, offsetof(Args, M)},
      {"L", 1, INT64_MAX, offsetof(Args, L)},
      {"Q", 0, INT64_MAX, offsetof(Args, Q)},
      {"Z", 0, INT64_MAX, offsetof(Args, Z)},
      {"S", 1, INT64_MAX, offsetof(Args, S)},
      {"E", 0, INT64_MAX, offsetof(Args, E)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"token_ids_all", Cell::kInt64, Access::kRead, offsetof(Args, token_ids_all), {{M}, {L}}},
      OperandInfo{"prompt_lens", Cell::kInt64, Access::kRead, offsetof(Args, prompt_lens), {{M}}},
      OperandInfo{"step_idx", Cell::kInt64, Access::kRead, offsetof(Args, step_idx), {{M}}},
      OperandInfo{"min_dec_len", Cell::kInt64, Access::kRead, offsetof(Args, min_dec_len), {{M}}},
      OperandInfo{"stop_seqs", Cell::kInt64, Access::kRead, offsetof(Args, stop_seqs), {{M}, {Q}, {Z}}},
      OperandInfo{"stop_seqs_lens", Cell::kInt32, Access::kRead, offsetof(Args, stop_seqs_lens), {{M}, {Q}}},
      OperandInfo{"accept_tokens", Cell::kInt64, Access::kWrite, offsetof(Args, accept_tokens), {{M}, {S}}},
      OperandInfo{"accept_num", Cell::kInt32, Access::kWrite, offsetof(Args, accept_num), {{M}}},
      OperandInfo{"max_dec_len", Cell::kInt64, Access::kWrite, offsetof(Args, max_dec_len), {{M}}},
      OperandInfo{"end_tokens", Cell::kInt64, Access::kRead, offsetof(Args, end_tokens), {{E}}}.or_null(),
  };
  static constexpr AttributeInfo attributes[] = {
      {"end_after_stop", 0, 1, offsetof(Args, end_after_stop), 1},
      {"keep_tail", 0, 1, offsetof(Args, keep_tail), 1},
  };
  static constexpr List<Order> symbol_orders = {};
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "set_stop_sequences", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::set_stop_sequences

inline constexpr OpOf<SetStopSequencesArgs> set_stop_sequences_signature = {
    detail::set_stop_sequences::Tables::signature};
// clang-format on

}  // namespace specdec
