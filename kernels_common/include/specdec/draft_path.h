// Drafts among candidates that the previous token weighs (contract, section 11): a row's candidates and their masses.
#pragma once

#include "specdec/draw.h"
#include "specdec/recurrent.h"
#include "specdec/row_rules.h"

namespace specdec {

// Whether entry c of a row's ids is a candidate: a token without an equal entry before it. Entries before c that are
// none may already be -1.
SPECDEC_HD bool is_candidate(const int64_t* ids, int c, int64_t vocabulary) {
  if (ids[c] < 0 || ids[c] >= vocabulary) return false;
  for (int i = 0; i < c; ++i) {
    if (ids[i] == ids[c]) return false;
  }
  return true;
}

// A row's entries. Those that are no candidates have id -1 and the key of -inf.
struct PathRow {
  const int32_t* keys;  // of the scores, see order_key()
  const int64_t* ids;
  int count;

  // The order of scores: the largest first, equal ones by their place in the row.
  SPECDEC_HD bool precedes(int i, int c) const { return keys[i] > keys[c] || (keys[i] == keys[c] && i < c); }

  // Mass of entry c after top_k. `top`: the largest key.
  SPECDEC_HD uint64_t mass(int c, int32_t top, const SamplingParams& params) const {
    int rank = 0;
    for (int i = 0; i < count; ++i) rank += ids[i] >= 0 && precedes(i, c) ? 1 : 0;
    if (ids[c] < 0) return 0;
    if (is_greedy(params)) return rank == 0 ? kMassOne : 0;
    if (params.top_k > 0 && rank >= params.top_k) return 0;
    return Softmax{key_value(top), inverse_temperature(params.temperature)}(key_value(keys[c]));
  }

  // Mass of entry c after all filters; `masses` and their `total` are those after top_k.
  SPECDEC_HD uint64_t kept(int c, const uint64_t* masses, uint64_t total, const SamplingParams& params) const {
    uint64_t before = 0;
    for (int i = 0; i < count; ++i) before += precedes(i, c) ? masses[i] : 0;
    const bool in_nucleus = before == 0 || before < mass_threshold(params.top_p, total);
    return in_nucleus && masses[c] >= mass_threshold(params.min_p, kMassOne) ? masses[c] : 0;
  }

  // Whether the draw ends at entry c. `masses` are the kept ones.
  SPECDEC_HD bool draws(int c, const uint64_t* masses, uint64_t point) const {
    uint64_t below = 0;
    for (int i = 0; i < count; ++i) below += ids[i] < ids[c] ? masses[i] : 0;
    return below <= point && point - below < masses[c];
  }
};

// Entry of a row's draft, -1 if it has none; `masses` become those of the draw.
SPECDEC_APART int draw_entry(const PathRow& row, const SamplingParams& params, uint64_t random, uint64_t* masses,
                             uint64_t* total) {
  int32_t top = -kKeyInf;
  for (int c = 0; c < row.count; ++c) top = row.keys[c] > top ? row.keys[c] : top;
  if (!has_distribution(top)) return -1;
  uint64_t counted[served::kC_draft], sum = 0;
  for (int c = 0; c < row.count; ++c) sum += counted[c] = row.mass(c, top, params);
  *total = 0;
  for (int c = 0; c < row.count; ++c) *total += masses[c] = row.kept(c, counted, sum, params);
  const uint64_t point = draw_point(random, *total);
  for (int c = 0; c < row.count; ++c) {
    if (row.draws(c, masses, point)) return c;
  }
  return -1;
}

// A dot product in parts: adds the elements of `y` from a multiple of kDotParts on, times `weights`.
template <class L>
SPECDEC_HD void add_products(const float* weights, const typename L::Bits* y, int64_t count, float* parts) {
  for (int64_t i = 0; i < count; ++i) {
    float& part = parts[i % kDotParts];
    part = add_rn(part, mul_rn(weights[i], L::widen(y[i])));
  }
}

SPECDEC_HD float dot_sum(const float* parts) {
  float columns[kDotParts][1], sum;
  for (int j = 0; j < kDotParts; ++j) columns[j][0] = parts[j];
  add_parts<1>(columns, 0, &sum);
  return sum;
}

}  // namespace specdec
