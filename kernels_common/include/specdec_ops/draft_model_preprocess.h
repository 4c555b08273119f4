// Arguments of draft_model_preprocess (contract, section 9).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec/flag.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct DraftModelPreprocessArgs {
  int64_t* draft_tokens;  // [M, S]
  int64_t* input_ids;  // [M, I_cap]
  Flag* stop_flags;  // [M]
  int32_t* seq_lens_this_time;  // [B]
  int32_t* seq_lens_encoder;  // [M]
  int32_t* seq_lens_decoder;  // [M]
  int64_t* step_idx;  // [M]
  Flag* has_running;  // [1]
  const int64_t* accept_tokens;  // [M, S]
  const int32_t* accept_num;  // [M]
  const int32_t* base_model_seq_lens_decoder;  // [M]
  const int64_t* base_model_step_idx;  // [M]
  const Flag* base_model_stop_flags;  // [M]
  const int64_t* max_dec_len;  // [M]
  const int32_t* draft_token_num;  // [M]
  int64_t* base_model_draft_tokens;  // [M, S]
  int64_t* pre_ids;  // [M, P], may be null
  int64_t M, S, I_cap, B, P;
  int64_t min_room;
};

// clang-format off
namespace detail::draft_model_preprocess {
struct Tables {
  using Args = DraftModelPreprocessArgs;
  enum : int { M, S, I_cap, B, P };
  enum : int { min_room };
  static constexpr SymbolInfo symbols[] = {
      {"M", 1, INT64_MAX, offsetof(Args, M)},
      {"S", 1, INT64_MAX, offsetof(Args, S)},
      {"I_cap", 0, INT64_MAX, offsetof(Args, I_cap)},
      {"B", 0, INT64_MAX, offsetof(Args, B)},
      {"P", 0, INT64_MAX, offsetof(Args, P)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"draft_tokens", Cell::kInt64, Access::kWrite, offsetof(Args, draft_tokens), {{M}, {S}}},
      OperandInfo{"input_ids", Cell::kInt64, Access::kWrite, offsetof(Args, input_ids), {{M}, {I_cap}}},
      OperandInfo{"stop_flags", Cell::kBool, Access::kWrite, offsetof(Args, stop_flags), {{M}}},
      OperandInfo{"seq_lens_this_time", Cell::kInt32, Access::kWrite, offsetof(Args, seq_lens_this_time), {{B}}},
      OperandInfo{"seq_lens_encoder", Cell::kInt32, Access::kWrite, offsetof(Args, seq_lens_encoder), {{M}}},
      OperandInfo{"seq_lens_decoder", Cell::kInt32, Access::kWrite, offsetof(Args, seq_lens_decoder), {{M}}},
      OperandInfo{"step_idx", Cell::kInt64, Access::kWrite, offsetof(Args, step_idx), {{M}}},
      OperandInfo{"has_running", Cell::kBool, Access::kWrite, offsetof(Args, has_running), {{kNone, 1}}},
      OperandInfo{"accept_tokens", Cell::kInt64, Access::kRead, offsetof(Args, accept_tokens), {{M}, {S}}},
      OperandInfo{"accept_num", Cell::kInt32, Access::kRead, offsetof(Args, accept_num), {{M}}},
      OperandInfo{"base_model_seq_lens_decoder", Cell::kInt32, Access::kRead,
                  offsetof(Args, base_model_seq_lens_decoder), {{M}}},
      OperandInfo{"base_model_step_idx", Cell::kInt64, Access::kRead, offsetof(Args, base_model_step_idx), {{M}}},
      OperandInfo{"base_model_stop_flags", Cell::kBool, Access::kRead, offsetof(Args, base_model_stop_flags), {{M}}},
      OperandInfo{"max_dec_len", Cell::kInt64, Access::kRead, offsetof(Args, max_dec_len), {{M}}},
      OperandInfo{"draft_token_num", Cell::kInt32, Access::kRead, offsetof(Args, draft_token_num), {{M}}},
      OperandInfo{"base_model_draft_tokens", Cell::kInt64, Access::kWrite,
                  offsetof(Args, base_model_draft_tokens), {{M}, {S}}},
      OperandInfo{"pre_ids", Cell::kInt64, Access::kWrite, offsetof(Args, pre_ids), {{M}, {P}}}.or_null(),
  };
  static constexpr AttributeInfo attributes[] = {
      {"min_room", 0, INT64_MAX, offsetof(Args, min_room), 8},
  };
  static constexpr Order symbol_orders[] = {
      {B, M},
  };
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "draft_model_preprocess", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::draft_model_preprocess

inline constexpr OpOf<DraftModelPreprocessArgs> draft_model_preprocess_signature = {
    detail::draft_model_preprocess::Tables::signature};
// clang-format on

}  // namespace specdec
