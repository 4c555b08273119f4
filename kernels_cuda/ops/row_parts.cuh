// Rows divided over ranks: exchanged data, and results by row_rules.h.
// `first_of_ranks`: of every rank the sort keys of its first elements, descending.
#pragma once

#include "specdec/row_rules.h"

namespace specdec {

// An element's place in the order of a row, as one number: the first is largest. Tokens are below 2^32.
constexpr int64_t kNowhere = INT64_MIN;  // after every sort key
constexpr int64_t kLastToken = 0xFFFFFFFF;

SPECDEC_HD int64_t sort_key(int32_t key, int64_t token) {
  return static_cast<int64_t>(key) * (int64_t{1} << 32) + (kLastToken - token);
}
SPECDEC_HD int32_t order_key_of(int64_t entry) {
  const int32_t key = static_cast<int32_t>(entry >> 32);
  return key < -kKeyInf ? -kKeyInf : key;
}
SPECDEC_HD int64_t token_of(int64_t entry) { return kLastToken - (entry & kLastToken); }
SPECDEC_HD float value_of(int64_t entry) { return key_value(order_key_of(entry)); }

// The largest logit of row r.
template <class Args>
SPECDEC_HD float top_of_ranks(const Args& a, int64_t r) {
  int64_t first = kNowhere;
  for (int64_t rank = 0; rank < a.Ranks; ++rank) {
    const int64_t other = a.first_of_ranks[(rank * a.R_cap + r) * a.Listed];
    first = other > first ? other : first;
  }
  return value_of(first);
}

template <class Args>
SPECDEC_HD SamplingParams params_of(const Args& a, int64_t r) {
  return {a.row_temperature[r], a.row_top_p[r], a.row_min_p[r], a.row_top_k[r]};
}

// At which masses are summed: 1 for a row that is not drawn.
SPECDEC_HD float drawn_at(float temperature) { return temperature > 0.0f ? inverse_temperature(temperature) : 1.0f; }

}  // namespace specdec
