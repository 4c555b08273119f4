// Arguments of top_p_candidates (contract, section 3).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct TopPCandidatesArgs {
  const float* probs;  // [R_cap, V]
  const float* top_p;  // [M]
  const int32_t* batch_id_per_token_output;  // [R_cap]
  float* candidate_scores;  // [R_cap, C]
  int64_t* candidate_ids;  // [R_cap, C]
  int32_t* candidate_lens;  // [R_cap]
  int64_t R_cap, V, M, C;
};

// clang-format off
namespace detail::top_p_candidates {
struct Tables {
  using Args = TopPCandidatesArgs;
  enum : int { R_cap, V, M, C };
  static constexpr SymbolInfo symbols[] = {
      {"R_cap", 0, INT64_MAX, offsetof(Args, R_cap)},
      {"V", 1, 16777215, offsetof(Args, V)},
      {"M", 1, INT64_MAX, offsetof(Args, M)},
      {"C", 1, INT64_MAX, offsetof(Args, C)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"probs", Cell::kFloat32, Access::kRead, offsetof(Args, probs), {{R_cap}, {V}}},
      OperandInfo{"top_p", Cell::kFloat32, Access::kRead, offsetof(Args, top_p), {{M}}},
      OperandInfo{"batch_id_per_token_output", Cell::kInt32, Access::kRead,
                  offsetof(Args, batch_id_per_token_output), {{R_cap}}},
      OperandInfo{"candidate_scores", Cell::kFloat32, Access::kWrite, offsetof(Args, candidate_scores), {{R_cap}, {C}}},
      OperandInfo{"candidate_ids", Cell::kInt64, Access::kWrite, offsetof(Args, candidate_ids), {{R_cap}, {C}}},
      OperandInfo{"candidate_lens", Cell::kInt32, Access::kWrite, offsetof(Args, candidate_lens), {{R_cap}}},
  };
  static constexpr List<AttributeInfo> attributes = {};
  static constexpr Order symbol_orders[] = {
      {C, V},
  };
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "top_p_candidates", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::top_p_candidates

inline constexpr OpOf<TopPCandidatesArgs> top_p_candidates_signature = {
    detail::top_p_candidates::Tables::signature};
// clang-format on

}  // namespace specdec
