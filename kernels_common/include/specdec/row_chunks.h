// A row some elements at a time, in loops without branches that become vector code: values, largest value, softmax
// masses.
#pragma once

#include "specdec/integers.h"
#include "specdec/mass.h"
#include "specdec/row_floats.h"

namespace specdec {

constexpr int kChunk = 64;  // elements looked at together

namespace detail {
constexpr float kFloatInf = __builtin_inff();
}
constexpr float kLeastFloat = -detail::kFloatInf;

// `count` elements from x on as a chunk of floats, with -inf behind them; in `buffer` if they do not stand so already.
template <class L>
SPECDEC_HD const float* chunk_floats(L, const typename L::Bits* x, int count, float* buffer) {
  if (count == kChunk) {
    for (int j = 0; j < kChunk; ++j) buffer[j] = L::widen(x[j]);
  } else {
    for (int j = 0; j < kChunk; ++j) buffer[j] = j < count ? L::widen(x[j]) : kLeastFloat;
  }
  return buffer;
}
SPECDEC_HD const float* chunk_floats(Float32, const float* x, int count, float* buffer) {
  if (count == kChunk) return x;
  for (int j = 0; j < kChunk; ++j) buffer[j] = j < count ? x[j] : kLeastFloat;
  return buffer;
}

// Calls v.chunk(values, first id, count) for the chunks of a tile until it returns false; returns what the last did.
// Here are the loops of all visitors.
template <class L, class Visitor>
SPECDEC_VECTOR bool visit_chunks(Visitor& v, const typename L::Bits* x, int64_t first, int count) {
  float buffer[kChunk];
  for (int i = 0; i < count; i += kChunk) {
    const int n = count - i < kChunk ? count - i : kChunk;
    if (!v.chunk(chunk_floats(L{}, x + i, n, buffer), first + i, n)) return false;
  }
  return true;
}

// Key of the largest element; that of NaN if there is any.
template <class L>
struct LargestVisitor {
  static constexpr int kLanes = kChunk / 2;

  float lane[kLanes];
  uint32_t unordered[kLanes];

  SPECDEC_HD LargestVisitor() {
    for (int j = 0; j < kLanes; ++j) lane[j] = kLeastFloat;
    for (int j = 0; j < kLanes; ++j) unordered[j] = 0;
  }
  SPECDEC_HD bool chunk(const float* value, int64_t, int) {
    add(value);
    add(value + kLanes);
    return true;
  }
  SPECDEC_HD void add(const float* value) {
    for (int j = 0; j < kLanes; ++j) unordered[j] |= 0u - static_cast<uint32_t>(value[j] != value[j]);
    for (int j = 0; j < kLanes; ++j) lane[j] = value[j] > lane[j] ? value[j] : lane[j];
  }
  SPECDEC_HD bool tile(const typename L::Bits* x, int64_t first, int count) {
    return visit_chunks<L>(*this, x, first, count);
  }
  SPECDEC_HD int32_t key() const {
    float largest = kLeastFloat;
    uint32_t any = 0;
    for (int j = 0; j < kLanes; ++j) largest = lane[j] > largest ? lane[j] : largest;
    for (int j = 0; j < kLanes; ++j) any |= unordered[j];
    return any != 0 ? kKeyNan : order_key(largest);
  }
};

// The first element with a value.
template <class L>
struct FirstVisitor {
  float wanted;
  int64_t id;

  SPECDEC_HD bool chunk(const float* value, int64_t first, int n) {
    uint32_t hits = 0;
    for (int j = 0; j < kChunk; ++j) hits |= static_cast<uint32_t>(value[j] == wanted);
    if (hits == 0) return true;
    int j = 0;
    while (j < n && value[j] != wanted) ++j;
    if (j == n) return true;  // behind the end of the row
    id = first + j;
    return false;
  }
  SPECDEC_HD bool tile(const typename L::Bits* x, int64_t first, int count) {
    return visit_chunks<L>(*this, x, first, count);
  }
};

// Masses of a row's logits, given its largest.
struct Softmax {
  float row_max, inv_temperature;

  SPECDEC_HD float t(float logit) const { return softmax_t(logit, row_max, inv_temperature); }
  SPECDEC_HD uint64_t operator()(float logit) const { return exp2_mass(t(logit)); }
};

// Exponents of a chunk of logits, and numbers whose integer parts are their masses. Of logits at -inf the mass is 0.
struct SoftmaxChunk {
  float t[kChunk], scaled[kChunk];

  SPECDEC_HD void load(const Softmax& softmax, const float* logit) {
    if (softmax.row_max < detail::kFloatInf && softmax.inv_temperature < detail::kFloatInf) {
      // At the maximum 0 comes by itself.
      for (int j = 0; j < kChunk; ++j) {
        t[j] = mul_rn(mul_rn(sub_rn(logit[j], softmax.row_max), softmax.inv_temperature), kLog2E);
      }
    } else {
      for (int j = 0; j < kChunk; ++j) t[j] = softmax.t(logit[j]);
    }
    constexpr int kHalf = kChunk / 2;  // half as much memory for what is in between
    exp2_scaled<kHalf>(t, scaled);
    exp2_scaled<kHalf>(t + kHalf, scaled + kHalf);
  }
};

}  // namespace specdec
