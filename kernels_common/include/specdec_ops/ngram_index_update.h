// Arguments of ngram_index_update (contract, section 6).
// Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include "specdec/contract.h"
#include "specdec_ops/signature.h"

namespace specdec {

struct NgramIndexUpdateArgs {
  uint8_t* index;  // [M, X]
  const int64_t* token_ids_all;  // [M, L]
  const int64_t* prompt_lens;  // [M]
  const int64_t* step_idx;  // [M]
  const int32_t* seq_lens_encoder;  // [M]
  const int32_t* seq_lens_decoder;  // [M]
  int64_t M, X, L;
  int32_t max_ngram_size;
  int32_t min_ngram_size;
};

// clang-format off
namespace detail::ngram_index_update {
struct Tables {
  using Args = NgramIndexUpdateArgs;
  enum : int { M, X, L };
  enum : int { max_ngram_size, min_ngram_size };
  static constexpr SymbolInfo symbols[] = {
      {"M", 1, INT64_MAX, offsetof(Args, M)},
      {"X", 0, INT64_MAX, offsetof(Args, X)},
      {"L", 1, INT64_MAX, offsetof(Args, L)},
  };
  static constexpr OperandInfo operands[] = {
      OperandInfo{"index", Cell::kUint8, Access::kWrite, offsetof(Args, index), {{M}, {X}}},
      OperandInfo{"token_ids_all", Cell::kInt64, Access::kRead, offsetof(Args, token_ids_all), {{M}, {L}}},
      OperandInfo{"prompt_lens", Cell::kInt64, Access::kRead, offsetof(Args, prompt_lens), {{M}}},
      OperandInfo{"step_idx", Cell::kInt64, Access::kRead, offsetof(Args, step_idx), {{M}}},
      OperandInfo{"seq_lens_encoder", Cell::kInt32, Access::kRead, offsetof(Args, seq_lens_encoder), {{M}}},
      OperandInfo{"seq_lens_decoder", Cell::kInt32, Access::kRead, offsetof(Args, seq_lens_decoder), {{M}}},
  };
  static constexpr AttributeInfo attributes[] = {
      {"max_ngram_size", 1, 16, offsetof(Args, max_ngram_size), 4},
      {"min_ngram_size", 1, 16, offsetof(Args, min_ngram_size), 4},
  };
  static constexpr List<Order> symbol_orders = {};
  static constexpr Order attribute_orders[] = {
      {min_ngram_size, max_ngram_size},
  };
  static constexpr OpSignature signature = {
      "ngram_index_update", symbols, operands, attributes, symbol_orders, attribute_orders, sizeof(Args)};
};
}  // namespace detail::ngram_index_update

inline constexpr OpOf<NgramIndexUpdateArgs> ngram_index_update_signature = {
    detail::ngram_index_update::Tables::signature};
// clang-format on

}  // namespace specdec
