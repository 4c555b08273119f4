// The rules of a row of logits (contract, sections 0 and 3), each written once: order of elements, masses by chunks,
// filters, the draw, log-probabilities. Kernels distribute the work and call these.
//
// A row is read once: chunk by chunk, a ChunkSum each. These give the largest logit m, the total and the chunk of a
// draw, which alone is read again. Filters and their draws use masses relative to m (Softmax), in the order that
// Thresholds.
#pragma once

#include "specdec/draw.h"
#include "specdec/integers.h"
#include "specdec/log2.h"
#include "specdec/mass.h"
#include "specdec/row_floats.h"

namespace specdec {

// ---- Order: value descending, equal values (-0 and +0 too) by ascending id. Values are compared as order_key().

// A threshold in the order of a row: keeps all larger keys, and ids up to `id` of equal ones.
struct Threshold {
  int32_t key;
  int64_t id;

  SPECDEC_HD bool keeps(int32_t other, int64_t other_id) const {
    return (other > key) | ((other == key) & (other_id <= id));
  }
};
SPECDEC_HD Threshold keep_none() { return {kKeyNan, -1}; }  // of a row without NaN
SPECDEC_HD Threshold keep_all() { return {-kKeyNan, 0}; }

// An inclusive range of keys is divided into buckets of 2^shift, from `top` down; the outer ones take what lies beyond.
constexpr int kBuckets = 128;
struct KeyGrid {
  int32_t top;
  int shift;

  SPECDEC_HD int bucket(int32_t key) const {
    const uint32_t b = (static_cast<uint32_t>(top) - static_cast<uint32_t>(key)) >> shift;
    return key >= top ? 0 : static_cast<int>(b < kBuckets - 1u ? b : kBuckets - 1u);
  }
};

struct KeyRange {
  int32_t low, high;

  SPECDEC_HD bool has(int32_t key) const { return key >= low && key <= high; }
  // The part of this range in one bucket of a grid.
  SPECDEC_HD KeyRange cell(const KeyGrid& grid, int bucket) const {
    const int64_t first = int64_t{grid.top} - (int64_t{bucket} << grid.shift);
    const int64_t last = first - (int64_t{1} << grid.shift) + 1;
    return {bucket == kBuckets - 1 ? low : static_cast<int32_t>(max64(last, low)),
            bucket == 0 ? high : static_cast<int32_t>(min64(first, high))};
  }
  // The finest grid that covers this range.
  SPECDEC_HD KeyGrid grid() const {
    const uint32_t width = static_cast<uint32_t>(high) - static_cast<uint32_t>(low);
    int shift = 0;
    while (width >> shift >= static_cast<uint32_t>(kBuckets)) ++shift;
    return {high, shift};
  }
};

// The goal of a threshold, counted from the top of the order.
enum class Goal : int { kCount, kMass };

struct Weight {
  uint64_t count, mass;

  SPECDEC_HD uint64_t of(Goal goal) const { return goal == Goal::kCount ? count : mass; }
  SPECDEC_HD Weight plus(Weight other) const { return {count + other.count, mass + other.mass}; }
};

// How many elements with one key are kept, each of this mass, where larger keys miss the goal by `missing`.
SPECDEC_HD uint64_t ties_kept(Goal goal, uint64_t missing, uint64_t mass) {
  return goal == Goal::kCount ? missing : (missing + mass - 1) / mass;
}

// Whether a row has tokens to draw, by its largest key: no NaN, and not all of it -inf.
SPECDEC_HD bool has_distribution(int32_t top) { return top != kKeyNan && top != -kKeyInf; }

// ---- Masses.

// Masses relative to `row_max`, the largest logit of a row or of a chunk.
struct Softmax {
  float row_max, inv_temperature;

  SPECDEC_HD float t(float logit) const { return softmax_t(logit, row_max, inv_temperature); }
  SPECDEC_HD uint64_t operator()(float logit) const { return exp2_mass(t(logit)); }
};

// Where only counts are asked for.
struct NoMass {
  SPECDEC_HD uint64_t operator()(float) const { return 0; }
};

// Of a temperature above 0.
SPECDEC_HD float inverse_temperature(float temperature) { return div_rn(1.0f, temperature); }

// ---- Chunks: ids [c * kChunkIds, (c + 1) * kChunkIds) of a row; the last may be shorter.

constexpr int kChunkBits = 10;
constexpr int kChunkIds = 1 << kChunkBits;

SPECDEC_HD int64_t chunk_count(int64_t ids) { return (ids + kChunkIds - 1) >> kChunkBits; }

// Result of one read of a chunk: its largest logit m_c, and the sum of its masses relative to m_c, at most 2^50.
// Elements beyond the row's end may count as -inf: they have no mass beside a larger logit, and a chunk of only -inf
// does not count.
struct ChunkSum {
  float top;
  uint64_t mass;
};

// floor(mass * weight / 2^40), for products below 2^104.
SPECDEC_HD uint64_t mass_product(uint64_t mass, uint64_t weight) {
  return mulhi64(mass, weight) << (64 - kMassBits) | (mass * weight) >> kMassBits;
}

// W_c: the weight of a chunk's largest logit in this row; 2^40 for the chunk with the row's largest, 0 for one of -inf.
SPECDEC_HD uint64_t chunk_weight(const Softmax& row, float chunk_top) { return row(chunk_top); }

// S_c: a chunk's share of the row's total, which is the sum of them.
SPECDEC_HD uint64_t chunk_share(const Softmax& row, const ChunkSum& sum) {
  return mass_product(sum.mass, chunk_weight(row, sum.top));
}

// A draw without filters takes the first chunk whose inclusive sum of shares exceeds draw_point(random, total). `rest`
// is that point less the sum of the earlier chunks. In the chunk, the draw takes the first element for whose inclusive
// sum of masses this holds.
// The last element's prefix is the chunk's, so there is one.
SPECDEC_HD bool draw_reached(uint64_t prefix, uint64_t weight, uint64_t rest) {
  return mass_product(prefix, weight) > rest;
}

// ---- Filters. Without one the total and the draw are those of the chunks; temperature 0 keeps the first of the
// largest alone.

struct SamplingParams {
  float temperature, top_p, min_p;
  int32_t top_k;
};

// Temperatures that are not above 0, NaN too.
SPECDEC_HD bool is_greedy(const SamplingParams& params) { return !(params.temperature > 0.0f); }

struct Filters {
  bool by_count;  // top_k: the first of the row's order
  bool by_mass;  // top_p: of these the smallest prefix that reaches nucleus(); none for NaN
  bool by_weight;  // min_p: of these the elements with a mass of at least `least`; NaN counts as 1
  uint64_t least;

  SPECDEC_HD Filters(const SamplingParams& params, int64_t size)
      : by_count(params.top_k > 0 && params.top_k < size),
        by_mass(params.top_p < 1.0f),
        by_weight(!(params.min_p <= 0.0f)),
        least(mass_threshold(params.min_p, kMassOne)) {}

  SPECDEC_HD bool any() const { return by_count | by_mass | by_weight; }
};

// The mass that top_p's prefix must reach, else it keeps everything. `total`: mass kept by top_k, or of all chunks.
SPECDEC_HD uint64_t nucleus(float top_p, uint64_t total) {
  const uint64_t need = mass_threshold(top_p, total);
  return need > 0 ? need : 1;
}

// The distribution of a draw: masses, 0 outside the threshold and below `least`. Their sum is the total; the draw is
// that of draw.h over all ids.
struct KeptMasses {
  Softmax softmax;
  Threshold threshold;
  uint64_t least;

  // It keeps the whole order.
  SPECDEC_HD bool keeps_everything() const { return threshold.key == keep_all().key; }
  // No smaller logit is kept.
  SPECDEC_HD float lowest() const { return key_value(keeps_everything() ? -kKeyInf : threshold.key); }

  // `mass`, or 0 if the element is not kept; without branches.
  SPECDEC_HD uint64_t of(int32_t key, int64_t id, uint64_t mass) const {
    return mass & (uint64_t{0} - static_cast<uint64_t>(threshold.keeps(key, id) & (mass >= least)));
  }

  // Elements with a mass of at least `least` have a t above this: a float's bits read as an integer give a line between
  // powers of two, below the logarithm. The rest covers the rounding of t and of the mass.
  SPECDEC_HD float deepest() const {
    const float bits = static_cast<float>(static_cast<int32_t>(f32_bits(u64_to_f32(least))));
    return sub_rn(mul_rn(bits, 0x1p-23f), 127.0f + kMassBits + 0x1p-8f);
  }
};

// ---- Log-probabilities. RAW: at temperature 1, the total that of the chunks. PROCESSED: at the row's own, the total
// that of the draw; of a greedy row 0.

constexpr float kLowestLogprob = -FLT_MAX;  // of -inf, and in a row without a distribution

// Of one row.
struct RowLogprobs {
  float row_max, ln_total;
  float inv_temperature = 1.0f;

  SPECDEC_HD float of(float logit) const {
    const float below = logit == row_max ? 0.0f : mul_rn(sub_rn(logit, row_max), inv_temperature);
    const float logprob = sub_rn(below, ln_total);
    return logprob < kLowestLogprob ? kLowestLogprob : logprob;
  }
};

// A token's rank: the number of elements >= its logit. Only chunks whose largest is >= it have any.

}  // namespace specdec
