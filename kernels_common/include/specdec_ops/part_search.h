// Arguments of part_search (contract, section 3).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec/flag.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct PartSearchArgs {
  const void* logits;  // [R_cap, V]
  const float* row_temperature;  // [R_cap]
  const float* row_top_p;  // [R_cap]
  const int32_t* row_top_k;  // [R_cap]
  const float* row_min_p;  // [R_cap]
  const int64_t* position;  // [R_cap]
  const float* chunk_tops;  // [R_cap, Chunks]
  const int64_t* first_of_ranks;  // [Ranks, R_cap, Listed]
  const Flag* settled;  // [R_cap], may be null
  const int64_t* totals;  // [R_cap], may be null
  const int64_t* last_kept;  // [R_cap], may be null
  const int64_t* state_before;  // [R_cap, State], may be null
  const int64_t* histograms_of_ranks;  // [Ranks, R_cap, Digits], may be null
  int64_t* state;  // [R_cap, State]
  int64_t* histogram;  // [R_cap, Digits]
  int64_t* list;  // [R_cap, Room]
  int64_t* listed;  // [R_cap]
  FloatType logits_type;
  int64_t R_cap, V, Chunks, Ranks, Listed, State, Digits, Room;
  int32_t first_token;
  int32_t vocab_size;
  int32_t shift;
  int32_t by_mass;
};

// clang-format off
namespace detail::part_search {
struct Tables {
  using Args = PartSearchArgs;
  enum : int { R_cap, V, Chunks, Ranks, Listed, State, Digits, Room };
  enum : int { first_token, vocab_size, shift, by_mass };
  static constexpr SymbolInfo symbols[] = {
      {"R_cap", 0, INT64_MAX, offsetof(Args, R_cap)},
      {"V", 1, 16777215, offsetof(Args, V)},
      {"Chunks", 0, INT64_MAX, offsetof(Args, Chunks)},
      {"Ranks", 0, INT64_MAX, offsetof(Args, Ranks)},
      {"Listed", 0, INT64_MAX, offsetof(Args, Listed)},
      {"State", 0, INT64_MAX, offsetof(Args, State)},
      {"Digits", 0, INT64_MAX, offsetof(Args, Digits)},
      {"Room", 0, INT64_MAX, offsetof(Args, Room)},
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
      OperandInfo{"settled", Cell::kBool, Access::kRead, offsetof(Args, settled), {{R_cap}}}.or_null(),
      OperandInfo{"totals", Cell::kInt64, Access::kRead, offsetof(Args, totals), {{R_cap}}}.or_null(),
      OperandInfo{"last_kept", Cell::kInt64, Access::kRead, offsetof(Args, last_kept), {{R_cap}}}.or_null(),
      OperandInfo{"state_before", Cell::kInt64, Access::kRead, offsetof(Args, state_before), {{R_cap}, {State}}}
          .or_null(),
      OperandInfo{"histograms_of_ranks", Cell::kInt64, Access::kRead,
            offsetof(Args, histograms_of_ranks), {{Ranks}, {R_cap}, {Digits}}}
          .or_null(),
      OperandInfo{"state", Cell::kInt64, Access::kWrite, offsetof(Args, state), {{R_cap}, {State}}},
      OperandInfo{"histogram", Cell::kInt64, Access::kWrite, offsetof(Args, histogram), {{R_cap}, {Digits}}},
      OperandInfo{"list", Cell::kInt64, Access::kWrite, offsetof(Args, list), {{R_cap}, {Room}}},
      OperandInfo{"listed", Cell::kInt64, Access::kWrite, offsetof(Args, listed), {{R_cap}}},
  };
  static constexpr AttributeInfo attributes[] = {
      {"first_token", 0, 2147483647, offsetof(Args, first_token), 4},
      {"vocab_size", 1, 16777215, offsetof(Args, vocab_size), 4},
      {"shift", -4, 28, offsetof(Args, shift), 4},
      {"by_mass", 0, 1, offsetof(Args, by_mass), 4},
  };
  static constexpr List<Order> symbol_orders = {};
  static constexpr List<Order> attribute_orders = {};
  static constexpr OpSignature signature = {
      "part_search", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::part_search

inline constexpr OpOf<PartSearchArgs> part_search_signature = {
    detail::part_search::Tables::signature};
// clang-format on

}  // namespace specdec
