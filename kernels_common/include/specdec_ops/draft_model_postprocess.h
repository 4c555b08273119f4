// Arguments of draft_model_postprocess (contract, section 9).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec/flag.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct DraftModelPostprocessArgs {
  const int64_t* draft_tokens;  // [M, S]
  int32_t* seq_lens_this_time;  // [B]
  const int32_t* seq_lens_encoder;  // [M]
  const Flag* stop_flags;  // [M]
  const int32_t* seq_lens_decoder;  // [M]
  int64_t M, S, B;
};

// clang-format off
namespace detail::draft_model_postprocess {
struct Tables {
  using Args = DraftModelPostprocessArgs;
  enum : int { M, S, B };
  static constexpr SymbolInfo symbols[] = {
      {"M", 1, INT64_MAX, offsetof(Args, M)},
      {"S", 1, INT64_MAX, offsetof(Args, S)},
      {"B", 0, INT64_MAX, offsetof(Args, B)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"draft_tokens", Cell::kInt64, Access::kRead, offsetof(Args, draft_tokens), {{M}, {S}}},
      OperandInfo{"seq_lens_this_time", Cell::kInt32, Access::kWrite, offsetof(Args, seq_lens_this_time), {{B}}},
      OperandInfo{"seq_lens_encoder", Cell::kInt32, Access::kRead, offsetof(Args, seq_lens_encoder), {{M}}},
      OperandInfo{"stop_flags", Cell::kBool, Access::kRead, offsetof(Args, stop_flags), {{M}}},
      OperandInfo{"seq_lens_decoder", Cell::kInt32, Access::kRead, offsetof(Args, seq_lens_decoder), {{M}}},
  };
  static constexpr List<AttributeInfo> attributes = {};
  static constexpr Order symbol_orders[] = {
      {B, M},
  };
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "draft_model_postprocess", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::draft_model_postprocess

inline constexpr OpOf<DraftModelPostprocessArgs> draft_model_postprocess_signature = {
    detail::draft_model_postprocess::Tables::signature};
// clang-format on

}  // namespace specdec
