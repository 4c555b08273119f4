// Arguments of part_listed (contract, section 3).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct PartListedArgs {
  const float* row_temperature;  // [R_cap]
  const float* row_top_p;  // [R_cap]
  const int32_t* row_top_k;  // [R_cap]
  const float* row_min_p;  // [R_cap]
  const int64_t* row_seed;  // [R_cap]
  const int64_t* position;  // [R_cap]
  const int64_t* first_of_ranks;  // [Ranks, R_cap, Listed]
  int64_t* drawn;  // [R_cap]
  int64_t R_cap, Ranks, Listed;
  int32_t vocab_size;
  Purpose purpose;
};

// clang-format off
namespace detail::part_listed {
struct Tables {
  using Args = PartListedArgs;
  enum : int { R_cap, Ranks, Listed };
  enum : int { vocab_size, purpose };
  static constexpr SymbolInfo symbols[] = {
      {"R_cap", 0, INT64_MAX, offsetof(Args, R_cap)},
      {"Ranks", 0, INT64_MAX, offsetof(Args, Ranks)},
      {"Listed", 0, INT64_MAX, offsetof(Args, Listed)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"row_temperature", Cell::kFloat32, Access::kRead, offsetof(Args, row_temperature), {{R_cap}}},
      OperandInfo{"row_top_p", Cell::kFloat32, Access::kRead, offsetof(Args, row_top_p), {{R_cap}}},
      OperandInfo{"row_top_k", Cell::kInt32, Access::kRead, offsetof(Args, row_top_k), {{R_cap}}},
      OperandInfo{"row_min_p", Cell::kFloat32, Access::kRead, offsetof(Args, row_min_p), {{R_cap}}},
      OperandInfo{"row_seed", Cell::kInt64, Access::kRead, offsetof(Args, row_seed), {{R_cap}}},
      OperandInfo{"position", Cell::kInt64, Access::kRead, offsetof(Args, position), {{R_cap}}},
      OperandInfo{"first_of_ranks", Cell::kInt64, Access::kRead,
                  offsetof(Args, first_of_ranks), {{Ranks}, {R_cap}, {Listed}}},
      OperandInfo{"drawn", Cell::kInt64, Access::kWrite, offsetof(Args, drawn), {{R_cap}}},
  };
  static constexpr AttributeInfo attributes[] = {
      {"vocab_size", 1, 16777215, offsetof(Args, vocab_size), 4},
      {"purpose", 0, 4, offsetof(Args, purpose), 4},
  };
  static constexpr List<Order> symbol_orders = {};
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "part_listed", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::part_listed

inline constexpr OpOf<PartListedArgs> part_listed_signature = {
    detail::part_listed::Tables::signature};
// clang-format on

}  // namespace specdec
