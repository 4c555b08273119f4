// Arguments of part_chunks (contract, section 3).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct PartChunksArgs {
  const void* logits;  // [R_cap, V]
  const int64_t* position;  // [R_cap]
  const float* row_temperature;  // [R_cap], may be null
  float* chunk_tops;  // [R_cap, Chunks], may be null
  int64_t* chunk_masses;  // [R_cap, Chunks], may be null
  int64_t* first;  // [R_cap, Listed], may be null
  FloatType logits_type;
  int64_t R_cap, V, Chunks, Listed;
  int32_t first_token;
};

// clang-format off
namespace detail::part_chunks {
struct Tables {
  using Args = PartChunksArgs;
  enum : int { R_cap, V, Chunks, Listed };
  enum : int { first_token };
  static constexpr SymbolInfo symbols[] = {
      {"R_cap", 0, INT64_MAX, offsetof(Args, R_cap)},
      {"V", 1, 16777215, offsetof(Args, V)},
      {"Chunks", 0, INT64_MAX, offsetof(Args, Chunks)},
      {"Listed", 0, INT64_MAX, offsetof(Args, Listed)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"logits", Cell::kFloat, Access::kRead, offsetof(Args, logits), {{R_cap}, {V}}}
          .with(offsetof(Args, logits_type)),
      OperandInfo{"position", Cell::kInt64, Access::kRead, offsetof(Args, position), {{R_cap}}},
      OperandInfo{"row_temperature", Cell::kFloat32, Access::kRead, offsetof(Args, row_temperature), {{R_cap}}}
          .or_null(),
      OperandInfo{"chunk_tops", Cell::kFloat32, Access::kWrite, offsetof(Args, chunk_tops), {{R_cap}, {Chunks}}}
          .or_null(),
      OperandInfo{"chunk_masses", Cell::kInt64, Access::kWrite, offsetof(Args, chunk_masses), {{R_cap}, {Chunks}}}
          .or_null(),
      OperandInfo{"first", Cell::kInt64, Access::kWrite, offsetof(Args, first), {{R_cap}, {Listed}}}.or_null(),
  };
  static constexpr AttributeInfo attributes[] = {
      {"first_token", 0, 2147483647, offsetof(Args, first_token), 4},
  };
  static constexpr List<Order> symbol_orders = {};
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "part_chunks", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::part_chunks

inline constexpr OpOf<PartChunksArgs> part_chunks_signature = {
    detail::part_chunks::Tables::signature};
// clang-format on

}  // namespace specdec
