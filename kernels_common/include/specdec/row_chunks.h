// A row some elements at a time, in loops without branches that become vector code: values, largest value, softmax
// masses. What these loops work on are arrays of the function that runs them, called by name and not by pointers: they
// are no memory that anything else could see, and checked builds have nothing to look at.
#pragma once

#include "specdec/row_rules.h"
#include "specdec/wide.h"

namespace specdec {

constexpr int kChunk = 64;           // elements looked at together
constexpr int kLanes = kChunk / 2;  // and half as many

namespace detail {
constexpr float kFloatInf = __builtin_inff();
}
constexpr float kLeastFloat = -detail::kFloatInf;

using Chunk = Wide<float, kChunk>;

// `count` elements from x on as a chunk of floats, with -inf behind them.
template <class L>
SPECDEC_HD void load_chunk(L, const typename L::Bits* x, int count, Chunk& chunk) {
  if (count == kChunk) {
    Wide<typename L::Bits, kChunk> bits;
    bits.load(x);
    for (int j = 0; j < kChunk; ++j) chunk[j] = L::widen(bits[j]);
  } else {
    for (int j = 0; j < kChunk; ++j) chunk[j] = j < count ? L::widen(x[j]) : kLeastFloat;
  }
}
SPECDEC_HD void load_chunk(Float32, const float* x, int count, Chunk& chunk) {
  if (count == kChunk) return chunk.load(x);
  for (int j = 0; j < kChunk; ++j) chunk[j] = j < count ? x[j] : kLeastFloat;
}

// What a visitor does with chunks, where it keeps what it finds in itself: a copy of it.
template <class Visitor>
struct OwnWork : Visitor {
  SPECDEC_HD explicit OwnWork(const Visitor& v) : Visitor(v) {}
  SPECDEC_HD void finish(Visitor& v) const { v = *this; }
};

// Makes a Visitor::Work, calls work.chunk(values, first id, count) for the chunks of a tile until it returns false, and
// work.finish(v); returns what the last chunk did. Here are the loops of all visitors.
template <class L, class Visitor>
SPECDEC_VECTOR bool visit_chunks(Visitor& v, const typename L::Bits* x, int64_t first, int count) {
  typename Visitor::Work work(v);
  bool more = true;
  for (int i = 0; more && i < count; i += kChunk) {
    const int n = count - i < kChunk ? count - i : kChunk;
    Chunk chunk;
    load_chunk(L{}, x + i, n, chunk);
    more = work.chunk(chunk, first + i, n);
  }
  work.finish(v);
  return more;
}

// The largest element, and of every kLanes-th element from each of the first kLanes on; whether any is NaN.
template <class L>
struct LargestVisitor {
  Wide<float, kLanes> lane;
  float largest;
  uint32_t unordered;

  struct Work {
    Wide<float, kLanes> lane;
    Wide<uint32_t, kLanes> unordered;

    SPECDEC_HD explicit Work(const LargestVisitor& v) {
      lane.load(v.lane.at);
      for (int j = 0; j < kLanes; ++j) unordered[j] = 0;
    }
    SPECDEC_HD bool chunk(const Chunk& value, int64_t, int) {
      for (int half = 0; half < kChunk; half += kLanes) {
        for (int j = 0; j < kLanes; ++j) {
          unordered[j] |= 0u - static_cast<uint32_t>(value[half + j] != value[half + j]);
        }
        for (int j = 0; j < kLanes; ++j) lane[j] = value[half + j] > lane[j] ? value[half + j] : lane[j];
      }
      return true;
    }
    SPECDEC_HD void finish(LargestVisitor& v) const {
      float largest = kLeastFloat;
      uint32_t any = 0;
      for (int j = 0; j < kLanes; ++j) largest = lane[j] > largest ? lane[j] : largest;
      for (int j = 0; j < kLanes; ++j) any |= unordered[j];
      lane.store(v.lane.at);
      v.largest = largest;
      v.unordered |= any;
    }
  };

  SPECDEC_HD LargestVisitor() : largest(kLeastFloat), unordered(0) {
    Wide<float, kLanes> none;
    for (int j = 0; j < kLanes; ++j) none[j] = kLeastFloat;
    none.store(lane.at);
  }
  SPECDEC_HD bool tile(const typename L::Bits* x, int64_t first, int count) {
    return visit_chunks<L>(*this, x, first, count);
  }
  SPECDEC_HD int32_t key() const { return unordered != 0 ? kKeyNan : order_key(largest); }
};

// A bit for each lane, from memory because not all vector units shift lanes by different amounts.
struct LaneBits {
  Wide<uint32_t, kLanes> bit;

  SPECDEC_HD LaneBits() {
    for (int j = 0; j < kLanes; ++j) bit[j] = 1u << j;
  }
};

// The first element with a value.
template <class L>
struct FirstVisitor {
  using Work = OwnWork<FirstVisitor>;

  float wanted;
  int64_t id;

  SPECDEC_HD bool chunk(const Chunk& value, int64_t first, int n) {
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

// Exponents of a chunk of logits, and numbers whose integer parts are their masses. Of logits at -inf the mass is 0.
struct SoftmaxChunk {
  Chunk t, scaled;

  SPECDEC_HD void load_t(const Softmax& softmax, const Chunk& logit) {
    if (softmax.row_max < detail::kFloatInf && softmax.inv_temperature < detail::kFloatInf) {
      // At the maximum 0 comes by itself.
      for (int j = 0; j < kChunk; ++j) {
        t[j] = mul_rn(mul_rn(sub_rn(logit[j], softmax.row_max), softmax.inv_temperature), kLog2E);
      }
    } else {
      for (int j = 0; j < kChunk; ++j) t[j] = softmax.t(logit[j]);
    }
  }
  SPECDEC_HD void load_scaled() { exp2_scaled<kChunk / 2>(t, scaled); }
  SPECDEC_HD void load(const Softmax& softmax, const Chunk& logit) {
    load_t(softmax, logit);
    load_scaled();
  }
};

}  // namespace specdec
