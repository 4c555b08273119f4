// Arguments of draft_model_update (contract, section 9).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec/flag.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct DraftModelUpdateArgs {
  const int64_t* inter_next_tokens;  // [R_cap]
  int64_t* draft_tokens;  // [M, S]
  int32_t* seq_lens_this_time;  // [B]
  int32_t* seq_lens_encoder;  // [M]
  int32_t* seq_lens_decoder;  // [M]
  int64_t* step_idx;  // [M]
  const Flag* stop_flags;  // [M]
  Flag* has_running;  // [1]
  const int64_t* max_dec_len;  // [M]
  const int32_t* draft_token_num;  // [M]
  int64_t* base_model_draft_tokens;  // [M, S]
  int64_t* pre_ids;  // [M, P], may be null
  int64_t R_cap, M, S, B, P;
  int32_t substep;
};

// clang-format off
namespace detail::draft_model_update {
struct Tables {
  using Args = DraftModelUpdateArgs;
  enum : int { R_cap, M, S, B, P };
  enum : int { substep };
  static constexpr SymbolInfo symbols[] = {
      {"R_cap", 0, INT64_MAX, offsetof(Args, R_cap)},
      {"M", 1, INT64_MAX, offsetof(Args, M)},
      {"S", 1, INT64_MAX, offsetof(Args, S)},
      {"B", 0, INT64_MAX, offsetof(Args, B)},
      {"P", 0, INT64_MAX, offsetof(Args, P)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"inter_next_tokens", Cell::kInt64, Access::kRead, offsetof(Args, inter_next_tokens), {{R_cap}}},
      OperandInfo{"draft_tokens", Cell::kInt64, Access::kWrite, offsetof(Args, draft_tokens), {{M}, {S}}},
      OperandInfo{"seq_lens_this_time", Cell::kInt32, Access::kWrite, offsetof(Args, seq_lens_this_time), {{B}}},
      OperandInfo{"seq_lens_encoder", Cell::kInt32, Access::kWrite, offsetof(Args, seq_lens_encoder), {{M}}},
      OperandInfo{"seq_lens_decoder", Cell::kInt32, Access::kWrite, offsetof(Args, seq_lens_decoder), {{M}}},
      OperandInfo{"step_idx", Cell::kInt64, Access::kWrite, offsetof(Args, step_idx), {{M}}},
      OperandInfo{"stop_flags", Cell::kBool, Access::kRead, offsetof(Args, stop_flags), {{M}}},
      OperandInfo{"has_running", Cell::kBool, Access::kWrite, offsetof(Args, has_running), {{kNone, 1}}},
      OperandInfo{"max_dec_len", Cell::kInt64, Access::kRead, offsetof(Args, max_dec_len), {{M}}},
      OperandInfo{"draft_token_num", Cell::kInt32, Access::kRead, offsetof(Args, draft_token_num), {{M}}},
      OperandInfo{"base_model_draft_tokens", Cell::kInt64, Access::kWrite,
                  offsetof(Args, base_model_draft_tokens), {{M}, {S}}},
      OperandInfo{"pre_ids", Cell::kInt64, Access::kWrite, offsetof(Args, pre_ids), {{M}, {P}}}.or_null(),
  };
  static constexpr AttributeInfo attributes[] = {
      {"substep", 0, 30, offsetof(Args, substep), 4},
  };
  static constexpr Order symbol_orders[] = {
      {B, M},
  };
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "draft_model_update", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::draft_model_update

inline constexpr OpOf<DraftModelUpdateArgs> draft_model_update_signature = {
    detail::draft_model_update::Tables::signature};
// clang-format on

}  // namespace specdec
