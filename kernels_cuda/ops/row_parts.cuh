// Rows of which several ranks have a part each: what they tell each other, and what follows from it by row_rules.h.
// `first_of_ranks`: of every rank the places of its first elements, descending.
#pragma once

#include "specdec/row_rules.h"

namespace specdec {

// Where an element stands in the order of a row, as one number: the first is largest. Tokens below 2^32.
constexpr int64_t kNowhere = INT64_MIN;  // behind every place
constexpr int64_t kLastToken = 0xFFFFFFFF;

SPECDEC_HD int64_t place_at(int32_t key, int64_t token) {
  return static_cast<int64_t>(key) * (int64_t{1} << 32) + (kLastToken - token);
}
SPECDEC_HD int32_t place_key(int64_t place) {
  const int32_t key = static_cast<int32_t>(place >> 32);
  return key < -kKeyInf ? -kKeyInf : key;
}
SPECDEC_HD int64_t place_token(int64_t place) { return kLastToken - (place & kLastToken); }
SPECDEC_HD float place_value(int64_t place) { return key_value(place_key(place)); }

// The largest logit of row r.
template <class Args>
SPECDEC_HD float top_of_ranks(const Args& a, int64_t r) {
  int64_t first = kNowhere;
  for (int64_t rank = 0; rank < a.Ranks; ++rank) {
    const int64_t other = a.first_of_ranks[(rank * a.R_cap + r) * a.Listed];
    first = other > first ? other : first;
  }
  return place_value(first);
}

template <class Args>
SPECDEC_HD SamplingParams params_of(const Args& a, int64_t r) {
  return {a.row_temperature[r], a.row_top_p[r], a.row_min_p[r], a.row_top_k[r]};
}

// At which masses are summed: 1 for a row that is not drawn.
SPECDEC_HD float drawn_at(float temperature) { return temperature > 0.0f ? inverse_temperature(temperature) : 1.0f; }

}  // namespace specdec
