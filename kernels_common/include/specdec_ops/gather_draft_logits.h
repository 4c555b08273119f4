// Arguments of gather_draft_logits (contract, section 7).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct GatherDraftLogitsArgs {
  const void* logits;  // [R_cap, V]
  const void* first_token_logits;  // [M, V]
  const int32_t* seq_lens_this_time;  // [B]
  const int32_t* seq_lens_encoder;  // [M]
  void* draft_logits;  // [D_cap, V]
  int32_t* next_token_num;  // [B]
  int32_t* batch_token_num;  // [B]
  int32_t* cu_next_token_offset;  // [B+1]
  int32_t* cu_batch_token_offset;  // [B+1]
  FloatType logits_type;
  int64_t R_cap, V, M, B, D_cap;
};

// clang-format off
namespace detail::gather_draft_logits {
struct Tables {
  using Args = GatherDraftLogitsArgs;
  enum : int { R_cap, V, M, B, D_cap };
  static constexpr SymbolInfo symbols[] = {
      {"R_cap", 0, INT64_MAX, offsetof(Args, R_cap)},
      {"V", 1, 16777215, offsetof(Args, V)},
      {"M", 1, INT64_MAX, offsetof(Args, M)},
      {"B", 0, INT64_MAX, offsetof(Args, B)},
      {"D_cap", 0, INT64_MAX, offsetof(Args, D_cap)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"logits", Cell::kFloat, Access::kRead, offsetof(Args, logits), {{R_cap}, {V}}}
          .with(offsetof(Args, logits_type)),
      OperandInfo{"first_token_logits", Cell::kFloat, Access::kRead, offsetof(Args, first_token_logits), {{M}, {V}}}
          .like(0),
      OperandInfo{"seq_lens_this_time", Cell::kInt32, Access::kRead, offsetof(Args, seq_lens_this_time), {{B}}},
      OperandInfo{"seq_lens_encoder", Cell::kInt32, Access::kRead, offsetof(Args, seq_lens_encoder), {{M}}},
      OperandInfo{"draft_logits", Cell::kFloat, Access::kWrite, offsetof(Args, draft_logits), {{D_cap}, {V}}}.like(0),
      OperandInfo{"next_token_num", Cell::kInt32, Access::kWrite, offsetof(Args, next_token_num), {{B}}},
      OperandInfo{"batch_token_num", Cell::kInt32, Access::kWrite, offsetof(Args, batch_token_num), {{B}}},
      OperandInfo{"cu_next_token_offset", Cell::kInt32, Access::kWrite, offsetof(Args, cu_next_token_offset), {{B, 1}}},
      OperandInfo{"cu_batch_token_offset", Cell::kInt32, Access::kWrite,
                  offsetof(Args, cu_batch_token_offset), {{B, 1}}},
  };
  static constexpr List<AttributeInfo> attributes = {};
  static constexpr Order symbol_orders[] = {
      {B, M},
  };
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "gather_draft_logits", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::gather_draft_logits

inline constexpr OpOf<GatherDraftLogitsArgs> gather_draft_logits_signature = {
    detail::gather_draft_logits::Tables::signature};
// clang-format on

}  // namespace specdec
