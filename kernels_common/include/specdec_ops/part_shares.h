// Arguments of part_shares (contract, section 3).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct PartSharesArgs {
  const int64_t* position;  // [R_cap]
  const float* row_temperature;  // [R_cap], may be null
  const float* chunk_tops;  // [R_cap, Chunks]
  const int64_t* chunk_masses;  // [R_cap, Chunks]
  const int64_t* first_of_ranks;  // [Ranks, R_cap, Listed]
  int64_t* shares;  // [R_cap, Chunks]
  int64_t* sums;  // [R_cap]
  int64_t R_cap, Chunks, Ranks, Listed;
};

// clang-format off
namespace detail::part_shares {
struct Tables {
  using Args = PartSharesArgs;
  enum : int { R_cap, Chunks, Ranks, Listed };
  static constexpr SymbolInfo symbols[] = {
      {"R_cap", 0, INT64_MAX, offsetof(Args, R_cap)},
      {"Chunks", 0, INT64_MAX, offsetof(Args, Chunks)},
      {"Ranks", 0, INT64_MAX, offsetof(Args, Ranks)},
      {"Listed", 0, INT64_MAX, offsetof(Args, Listed)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"position", Cell::kInt64, Access::kRead, offsetof(Args, position), {{R_cap}}},
      OperandInfo{"row_temperature", Cell::kFloat32, Access::kRead, offsetof(Args, row_temperature), {{R_cap}}}
          .or_null(),
      OperandInfo{"chunk_tops", Cell::kFloat32, Access::kRead, offsetof(Args, chunk_tops), {{R_cap}, {Chunks}}},
      OperandInfo{"chunk_masses", Cell::kInt64, Access::kRead, offsetof(Args, chunk_masses), {{R_cap}, {Chunks}}},
      OperandInfo{"first_of_ranks", Cell::kInt64, Access::kRead,
                  offsetof(Args, first_of_ranks), {{Ranks}, {R_cap}, {Listed}}},
      OperandInfo{"shares", Cell::kInt64, Access::kWrite, offsetof(Args, shares), {{R_cap}, {Chunks}}},
      OperandInfo{"sums", Cell::kInt64, Access::kWrite, offsetof(Args, sums), {{R_cap}}},
  };
  static constexpr List<AttributeInfo> attributes = {};
  static constexpr List<Order> symbol_orders = {};
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "part_shares", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::part_shares

inline constexpr OpOf<PartSharesArgs> part_shares_signature = {
    detail::part_shares::Tables::signature};
// clang-format on

}  // namespace specdec
