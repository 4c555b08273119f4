// Arguments of build_sampling_params (contract, section 3).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct BuildSamplingParamsArgs {
  const float* temperature;  // [M]
  const float* top_p;  // [M]
  const int32_t* top_k;  // [M]
  const float* min_p;  // [M]
  const int64_t* seed;  // [M]
  const int64_t* prompt_lens;  // [M]
  const int64_t* step_idx;  // [M]
  const int32_t* cu_seqlens_q_output;  // [B+1]
  const int32_t* batch_id_per_token_output;  // [R_cap]
  float* row_temperature;  // [R_cap]
  float* row_top_p;  // [R_cap]
  int32_t* row_top_k;  // [R_cap]
  float* row_min_p;  // [R_cap]
  int64_t* row_seed;  // [R_cap]
  int64_t* position;  // [R_cap]
  int64_t* infer_seed;  // [M], may be null
  int64_t M, B, R_cap;
  int64_t row_seed_step;
  int64_t seed_increment;
  int64_t seed_modulus;
};

// clang-format off
namespace detail::build_sampling_params {
struct Tables {
  using Args = BuildSamplingParamsArgs;
  enum : int { M, B, R_cap };
  enum : int { row_seed_step, seed_increment, seed_modulus };
  static constexpr SymbolInfo symbols[] = {
      {"M", 1, INT64_MAX, offsetof(Args, M)},
      {"B", 0, INT64_MAX, offsetof(Args, B)},
      {"R_cap", 0, INT64_MAX, offsetof(Args, R_cap)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"temperature", Cell::kFloat32, Access::kRead, offsetof(Args, temperature), {{M}}},
      OperandInfo{"top_p", Cell::kFloat32, Access::kRead, offsetof(Args, top_p), {{M}}},
      OperandInfo{"top_k", Cell::kInt32, Access::kRead, offsetof(Args, top_k), {{M}}},
      OperandInfo{"min_p", Cell::kFloat32, Access::kRead, offsetof(Args, min_p), {{M}}},
      OperandInfo{"seed", Cell::kInt64, Access::kRead, offsetof(Args, seed), {{M}}},
      OperandInfo{"prompt_lens", Cell::kInt64, Access::kRead, offsetof(Args, prompt_lens), {{M}}},
      OperandInfo{"step_idx", Cell::kInt64, Access::kRead, offsetof(Args, step_idx), {{M}}},
      OperandInfo{"cu_seqlens_q_output", Cell::kInt32, Access::kRead, offsetof(Args, cu_seqlens_q_output), {{B, 1}}},
      OperandInfo{"batch_id_per_token_output", Cell::kInt32, Access::kRead,
                  offsetof(Args, batch_id_per_token_output), {{R_cap}}},
      OperandInfo{"row_temperature", Cell::kFloat32, Access::kWrite, offsetof(Args, row_temperature), {{R_cap}}},
      OperandInfo{"row_top_p", Cell::kFloat32, Access::kWrite, offsetof(Args, row_top_p), {{R_cap}}},
      OperandInfo{"row_top_k", Cell::kInt32, Access::kWrite, offsetof(Args, row_top_k), {{R_cap}}},
      OperandInfo{"row_min_p", Cell::kFloat32, Access::kWrite, offsetof(Args, row_min_p), {{R_cap}}},
      OperandInfo{"row_seed", Cell::kInt64, Access::kWrite, offsetof(Args, row_seed), {{R_cap}}},
      OperandInfo{"position", Cell::kInt64, Access::kWrite, offsetof(Args, position), {{R_cap}}},
      OperandInfo{"infer_seed", Cell::kInt64, Access::kWrite, offsetof(Args, infer_seed), {{M}}}.or_null(),
  };
  static constexpr AttributeInfo attributes[] = {
      {"row_seed_step", 0, INT64_MAX, offsetof(Args, row_seed_step), 8},
      {"seed_increment", 0, INT64_MAX, offsetof(Args, seed_increment), 8},
      {"seed_modulus", 1, INT64_MAX, offsetof(Args, seed_modulus), 8},
  };
  static constexpr Order symbol_orders[] = {
      {B, M},
  };
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "build_sampling_params", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::build_sampling_params

inline constexpr OpOf<BuildSamplingParamsArgs> build_sampling_params_signature = {
    detail::build_sampling_params::Tables::signature};
// clang-format on

}  // namespace specdec
