// Arguments of sample_target (contract, section 3).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct SampleTargetArgs {
  const void* logits;  // [R_cap, V]
  const float* row_temperature;  // [R_cap]
  const float* row_top_p;  // [R_cap]
  const int32_t* row_top_k;  // [R_cap]
  const float* row_min_p;  // [R_cap]
  const int64_t* row_seed;  // [R_cap]
  const int64_t* position;  // [R_cap]
  int64_t* target_tokens;  // [R_cap]
  float* logprobs;  // [R_cap], may be null
  int64_t* ranks;  // [R_cap], may be null
  FloatType logits_type;
  int64_t R_cap, V;
  Purpose purpose;
  LogprobMode logprob_mode;
};

// clang-format off
namespace detail::sample_target {
struct Tables {
  using Args = SampleTargetArgs;
  enum : int { R_cap, V };
  enum : int { purpose, logprob_mode };
  static constexpr SymbolInfo symbols[] = {
      {"R_cap", 0, INT64_MAX, offsetof(Args, R_cap)},
      {"V", 1, 16777215, offsetof(Args, V)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"logits", Cell::kFloat, Access::kRead, offsetof(Args, logits), {{R_cap}, {V}}}
          .with(offsetof(Args, logits_type)),
      OperandInfo{"row_temperature", Cell::kFloat32, Access::kRead, offsetof(Args, row_temperature), {{R_cap}}},
      OperandInfo{"row_top_p", Cell::kFloat32, Access::kRead, offsetof(Args, row_top_p), {{R_cap}}},
      OperandInfo{"row_top_k", Cell::kInt32, Access::kRead, offsetof(Args, row_top_k), {{R_cap}}},
      OperandInfo{"row_min_p", Cell::kFloat32, Access::kRead, offsetof(Args, row_min_p), {{R_cap}}},
      OperandInfo{"row_seed", Cell::kInt64, Access::kRead, offsetof(Args, row_seed), {{R_cap}}},
      OperandInfo{"position", Cell::kInt64, Access::kRead, offsetof(Args, position), {{R_cap}}},
      OperandInfo{"target_tokens", Cell::kInt64, Access::kWrite, offsetof(Args, target_tokens), {{R_cap}}},
      OperandInfo{"logprobs", Cell::kFloat32, Access::kWrite, offsetof(Args, logprobs), {{R_cap}}}.or_null(),
      OperandInfo{"ranks", Cell::kInt64, Access::kWrite, offsetof(Args, ranks), {{R_cap}}}.or_null(),
  };
  static constexpr AttributeInfo attributes[] = {
      {"purpose", 0, 4, offsetof(Args, purpose), 4},
      {"logprob_mode", 0, 1, offsetof(Args, logprob_mode), 4},
  };
  static constexpr List<Order> symbol_orders = {};
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "sample_target", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::sample_target

inline constexpr OpOf<SampleTargetArgs> sample_target_signature = {
    detail::sample_target::Tables::signature};
// clang-format on

}  // namespace specdec
