// Arguments of part_kept (contract, section 3).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct PartKeptArgs {
  const void* logits;  // [R_cap, V]
  const float* row_temperature;  // [R_cap]
  const float* row_top_p;  // [R_cap]
  const int32_t* row_top_k;  // [R_cap]
  const float* row_min_p;  // [R_cap]
  const int64_t* position;  // [R_cap]
  const float* chunk_tops;  // [R_cap, Chunks]
  const int64_t* first_of_ranks;  // [Ranks, R_cap, Listed]
  int64_t* shares;  // [R_cap, Chunks]
  FloatType logits_type;
  int64_t R_cap, V, Chunks, Ranks, Listed;
  int32_t vocab_size;
};

// clang-format off
namespace detail::part_kept {
struct Tables {
  using Args = PartKeptArgs;
  enum : int { R_cap, V, Chunks, Ranks, Listed };
  enum : int { vocab_size };
  static constexpr SymbolInfo symbols[] = {
      {"R_cap", 0, INT64_MAX, offsetof(Args, R_cap)},
      {"V", 1, 16777215, offsetof(Args, V)},
      {"Chunks", 0, INT64_MAX, offsetof(Args, Chunks)},
      {"Ranks", 0, INT64_MAX, offsetof(Args, Ranks)},
      {"Listed", 0, INT64_MAX, offsetof(Args, Listed)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"logits", Cell::kFloat, Access::kRead, offsetof(Args, logits), {{R_cap}, {V}}}
          .with(offsetof(Args, logits_type)),
      OperandInfo{"row_temperature", Cell::kFloat32, Access::kRead, offsetof(Args, row_temperature), {{R_cap}}},
      OperandInfo{"row_top_p", Cell::kFloat32, Access::kRead, offsetof(Args, row_top_p), {{R_cap}}},
      OperandInfo{"row_top_k", Cell::kInt32, Access::kRead, offsetof(Args, row_top_k), {{R_cap}}},
      OperandInfo{"row_min_p", Cell::kFloat32, Access::kRead, offsetof(Args, row_min_p), {{R_cap}}},
      OperandInfo{"position", Cell::kInt64, Access::kRead, offsetof(Args, position), {{R_cap}}},
      OperandInfo{"chunk_tops", Cell::kFloat32, Access::kRead, offsetof(Args, chunk_tops), {{R_cap}, {Chunks}}},
      OperandInfo{"first_of_ranks", Cell::kInt64, Access::kRead,
                  offsetof(Args, first_of_ranks), {{Ranks}, {R_cap}, {Listed}}},
      OperandInfo{"shares", Cell::kInt64, Access::kWrite, offsetof(Args, shares), {{R_cap}, {Chunks}}},
  };
  static constexpr AttributeInfo attributes[] = {
      {"vocab_size", 1, 16777215, offsetof(Args, vocab_size), 4},
  };
  static constexpr List<Order> symbol_orders = {};
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "part_kept", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::part_kept

inline constexpr OpOf<PartKeptArgs> part_kept_signature = {
    detail::part_kept::Tables::signature};
// clang-format on

}  // namespace specdec
