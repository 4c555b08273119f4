// Loops over a chunk of a row, branch-free where there are many elements, for vectorisation. They work on local arrays
// by name, not by pointer, which checked builds need not instrument.
#pragma once

#include "specdec/row_rules.h"
#include "specdec/rows/wide.h"

namespace specdec {

constexpr int kBlock = 64;         // elements looked at together
constexpr int kLanes = kBlock / 2;  // and half as many

namespace detail {
constexpr float kFloatInf = __builtin_inff();
}

using Block = Wide<float, kBlock>;

// `count` elements from x on as floats, with -inf after them.
template <class L>
SPECDEC_HD void load_block(L, const typename L::Bits* x, int count, Block& block) {
  if (count >= kBlock) {
    Wide<typename L::Bits, kBlock> bits;
    bits.load(x);
    for (int j = 0; j < kBlock; ++j) block[j] = L::widen(bits[j]);
  } else {
    for (int j = 0; j < kBlock; ++j) block[j] = j < count ? L::widen(x[j]) : -detail::kFloatInf;
  }
}

// Without intermediate arrays, which compilers keep: they cost half as much again.
SPECDEC_HD void load_block(Float32, const float* x, int count, Block& block) {
  if (count >= kBlock) return block.load(x);
  for (int j = 0; j < kBlock; ++j) block[j] = j < count ? x[j] : -detail::kFloatInf;
}

// body(block, index of its first element) for the blocks of a chunk, until it returns false.
template <class L, class Body>
SPECDEC_HD void each_block(const typename L::Bits* x, int count, Body body) {
  for (int i = 0; i < count; i += kBlock) {
    Block block;
    load_block(L{}, x + i, count - i, block);
    if (!body(block, i)) return;
  }
}

// The largest key; kKeyNan if there is a NaN. `lanes`, kLanes of them: the larger of what is there and every kLanes-th
// element.
template <class L>
SPECDEC_VECTOR int32_t chunk_top(const typename L::Bits* x, int count, float* lanes) {
  Wide<float, kLanes> lane, before;
  Wide<uint32_t, kLanes> unordered;
  for (int j = 0; j < kLanes; ++j) lane[j] = -detail::kFloatInf;
  for (int j = 0; j < kLanes; ++j) unordered[j] = 0;
  each_block<L>(x, count, [&](const Block& value, int) {
    for (int j = 0; j < kLanes; ++j) {
      unordered[j] |= 0u - static_cast<uint32_t>(__builtin_isunordered(value[j], value[kLanes + j]));
    }
    for (int half = 0; half < kBlock; half += kLanes) {
      for (int j = 0; j < kLanes; ++j) lane[j] = value[half + j] > lane[j] ? value[half + j] : lane[j];
    }
    return true;
  });
  before.load(lanes);
  for (int j = 0; j < kLanes; ++j) before[j] = lane[j] > before[j] ? lane[j] : before[j];
  before.store(lanes);
  uint32_t any = 0;
  for (int j = 0; j < kLanes; ++j) any |= unordered[j];
  for (int width = kLanes / 2; width > 0; width /= 2) {  // by halves: one lane after the other is a chain
    for (int j = 0; j < width; ++j) lane[j] = lane[width + j] > lane[j] ? lane[width + j] : lane[j];
  }
  return any != 0 ? kKeyNan : order_key(lane[0]);
}

// The index of the first element that equals `wanted`, which there is.
template <class L>
SPECDEC_VECTOR int first_equal(const typename L::Bits* x, int count, float wanted) {
  int found = 0;
  each_block<L>(x, count, [&](const Block& value, int i) {
    uint32_t hits = 0;
    for (int j = 0; j < kBlock; ++j) hits |= static_cast<uint32_t>(value[j] == wanted);
    if (hits == 0) return true;
    found = i;
    return false;
  });
  while (L::widen(x[found]) != wanted) ++found;
  return found;
}

// How many elements are at least `least`.
template <class L>
SPECDEC_VECTOR int count_at_least(const typename L::Bits* x, int count, float least) {
  int32_t all = 0;
  each_block<L>(x, count, [&](const Block& value, int i) {
    for (int j = 0; j < kBlock; ++j) {
      all += static_cast<int32_t>(value[j] >= least) & static_cast<int32_t>(i + j < count);
    }
    return true;
  });
  return all;
}

// The elements of a block for which something holds.
struct BlockBits {
  Wide<uint32_t, kLanes> bit;  // from memory because not all vector units shift lanes by different amounts
  uint32_t hits[kBlock / kLanes];

  SPECDEC_HD BlockBits() {
    for (int j = 0; j < kLanes; ++j) bit[j] = 1u << j;
  }
  // holds(j)
  template <class Holds>
  SPECDEC_HD void load(Holds holds) {
    for (int half = 0; half < kBlock / kLanes; ++half) {
      uint32_t bits = 0;
      for (int j = 0; j < kLanes; ++j) bits |= (0u - static_cast<uint32_t>(holds(half * kLanes + j))) & bit[j];
      hits[half] = bits;
    }
  }
  // body(j) for these
  template <class Body>
  SPECDEC_HD void each(Body body) const {
    if ((hits[0] | hits[1]) == 0) return;
    for (int half = 0; half < kBlock / kLanes; ++half) {
      for (uint32_t left = hits[half]; left != 0; left &= left - 1) body(half * kLanes + count_trailing_ones(~left));
    }
  }
};

// body(key, id, value) for every element in [low, high] that `from` does not keep, in order; the first one has the id
// `first`. Most blocks have none.
template <class L, class Body>
SPECDEC_VECTOR void each_in_range(const typename L::Bits* x, int count, int64_t first, float low, float high,
                                  Threshold from, Body& body) {
  BlockBits hits;
  each_block<L>(x, count, [&](const Block& value, int i) {
    hits.load([&](int j) { return static_cast<uint32_t>(value[j] >= low) & static_cast<uint32_t>(value[j] <= high); });
    hits.each([&](int j) {
      const int32_t key = order_key(value[j]);
      if (i + j < count && !from.keeps(key, first + i + j)) body(key, first + i + j, value[j]);
    });
    return true;
  });
}

// Exponents of a block of logits, and numbers whose integer parts are their masses. Of logits at -inf the mass is 0.
struct SoftmaxBlock {
  Block t, scaled;

  SPECDEC_HD void load_t(const Softmax& softmax, const Block& logit) {
    if (softmax.row_max < detail::kFloatInf && softmax.inv_temperature < detail::kFloatInf) {
      // At the maximum 0 comes by itself.
      for (int j = 0; j < kBlock; ++j) {
        t[j] = mul_rn(mul_rn(sub_rn(logit[j], softmax.row_max), softmax.inv_temperature), kLog2E);
      }
    } else {
      for (int j = 0; j < kBlock; ++j) t[j] = softmax.t(logit[j]);
    }
  }
  // exp2_mass in stages, each a loop of independent elements that becomes vector code; half of them at a time. Below
  // 2^-64 a number is 0.
  SPECDEC_HD void load_scaled() {
    for (int at = 0; at < kBlock; at += kLanes) {
      Wide<float, kLanes> f, p;
      Wide<uint32_t, kLanes> power;
      for (int j = 0; j < kLanes; ++j) {
        const float rounded = add_rn(t[at + j], detail::kRounder);
        f[j] = sub_rn(t[at + j], sub_rn(rounded, detail::kRounder));
        power[j] = (f32_bits(rounded) << 23) + (static_cast<uint32_t>(kMassBits) << 23);
      }
      for (int j = 0; j < kLanes; ++j) p[j] = detail::exp2_inner(f[j]);
      for (int j = 0; j < kLanes; ++j) p[j] = detail::exp2_outer(p[j], f[j]);
      for (int j = 0; j < kLanes; ++j) {
        const uint32_t counts = 0u - static_cast<uint32_t>(t[at + j] > -64.0f);
        scaled[at + j] = f32_from_bits((f32_bits(p[j]) + power[j]) & counts);
      }
    }
  }
  // Sum of the masses, as two sums of 32-bit integers: 2^17 goes into a number in [0, 2^40] exactly `high` times, and
  // what is left is exact.
  SPECDEC_HD uint64_t sum() const {
    int32_t high = 0, low = 0;  // 31 bits are enough for 64 numbers
    for (int j = 0; j < kBlock; ++j) {
      const int32_t times = static_cast<int32_t>(mul_rn(scaled[j], 0x1p-17f));
      high += times;
      low += static_cast<int32_t>(sub_rn(scaled[j], mul_rn(static_cast<float>(times), 0x1p17f)));
    }
    return (static_cast<uint64_t>(static_cast<uint32_t>(high)) << 17) + static_cast<uint32_t>(low);
  }

  // Loads the masses of a block whose first id is `first`; false if there are none, and then all of it is void. Masses
  // that are not kept are 0.
  SPECDEC_HD bool load(const Softmax& softmax, const Block& logit, int64_t) {
    load_t(softmax, logit);
    load_scaled();
    return true;
  }
  SPECDEC_HD bool load(const KeptMasses& kept, const Block& logit, int64_t first) {
    Wide<uint32_t, kBlock> inside;
    uint32_t any = 0;
    for (int j = 0; j < kBlock; ++j) inside[j] = ~0u;
    if (!kept.keeps_everything()) {
      const float low = kept.lowest();
      const int last = static_cast<int>(clamp64(kept.threshold.id - first, -1, kBlock));
      for (int j = 0; j < kBlock; ++j) {
        const uint32_t above = static_cast<uint32_t>(logit[j] > low), at = static_cast<uint32_t>(logit[j] == low);
        inside[j] = 0u - (above | (at & static_cast<uint32_t>(j <= last)));
        any |= inside[j];
      }
      if (any == 0) return false;
    }
    load_t(kept.softmax, logit);
    if (kept.least > 0) {
      const float deepest = kept.deepest();
      any = 0;
      for (int j = 0; j < kBlock; ++j) any |= inside[j] & static_cast<uint32_t>(t[j] >= deepest);
      if (any == 0) return false;
    }
    load_scaled();
    const float least = u64_to_f32(kept.least);  // exact: 24 bits
    for (int j = 0; j < kBlock; ++j) {
      const uint32_t counts = 0u - static_cast<uint32_t>(scaled[j] >= least);
      scaled[j] = f32_from_bits(f32_bits(scaled[j]) & inside[j] & counts);
    }
    return true;
  }
};

// Sum of a chunk's masses. `Masses`: Softmax or KeptMasses; `first`: the chunk's first id.
template <class L, class Masses>
SPECDEC_VECTOR uint64_t chunk_mass(const typename L::Bits* x, int count, const Masses& of, int64_t first) {
  const Masses from = of;
  uint64_t total = 0;
  each_block<L>(x, count, [&](const Block& logit, int i) {
    SoftmaxBlock masses;
    if (masses.load(from, logit, first + i)) total += masses.sum();
    return true;
  });
  return total;
}

// The index of the first element whose inclusive prefix sum of masses exceeds a draw's `rest` (draw_reached); -1 if
// none does. `below`: the sum before the chunk, and afterwards before that element or after the chunk.
template <class L, class Masses>
SPECDEC_VECTOR int chunk_draw(const typename L::Bits* x, int count, const Masses& of, int64_t first, uint64_t weight,
                              uint64_t rest, uint64_t* below) {
  const Masses from = of;
  uint64_t before = *below;
  int found = -1;
  each_block<L>(x, count, [&](const Block& logit, int i) {
    SoftmaxBlock masses;
    if (!masses.load(from, logit, first + i)) return true;
    const uint64_t sum = masses.sum();
    if (!draw_reached(before + sum, weight, rest)) {
      before += sum;
      return true;
    }
    for (found = i;; ++found) {
      const uint64_t mass = f32_to_u64(masses.scaled[found - i]);
      if (draw_reached(before + mass, weight, rest)) return false;
      before += mass;
    }
  });
  *below = before;
  return found;
}

}  // namespace specdec
