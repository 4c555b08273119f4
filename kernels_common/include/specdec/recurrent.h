// Layers with a state by position (contract, section 12): places in a ring, and the arithmetic of a token.
#pragma once

#include "specdec/contract.h"
#include "specdec/exp.h"
#include "specdec/integers.h"

namespace specdec {

// The offset m_b of a slot is the largest of these up to b.
SPECDEC_HD int64_t row_offset(int32_t cu_seqlens_q, int64_t capacity) { return clamp64(cu_seqlens_q, 0, capacity); }

SPECDEC_HD int64_t first_position(int32_t dec) { return max64(dec, 0); }

// The first of a slot's `count` rows whose state or input is kept: later ones overwrite those of earlier rows.
SPECDEC_HD int64_t first_kept(int64_t count, int64_t ring) { return max64(count - ring, 0); }

// Position of a slot's checkpoint before and after a step of `count` rows from position `start` on. The step records
// the rows from position `to` on: all of them, or none.
struct CheckpointMove {
  int64_t at, to;
};

SPECDEC_HD CheckpointMove checkpoint_move(int32_t known, int64_t start, int64_t count, int64_t ring) {
  const int64_t half = ring / 2, at = min64(max64(known, max64(start - half, 0)), start);
  if (count > half) return {at, start + count};
  return {at, start + count - at > half ? start : at};
}

SPECDEC_HD int64_t key_head(int64_t value_head, int64_t key_heads, int64_t value_heads) {
  return value_head * key_heads / value_heads;
}

// Whether this is the first value head of its key head: the one that records keys.
SPECDEC_HD bool records_key(int64_t value_head, int64_t key_heads, int64_t value_heads) {
  return value_head == 0 ||
         key_head(value_head - 1, key_heads, value_heads) != key_head(value_head, key_heads, value_heads);
}

SPECDEC_HD float activated(float sum, Activation activation) {
  return activation == Activation::kSilu ? div_rn(sum, add_rn(1.0f, exp_f32(-sum))) : sum;
}

constexpr int kDotParts = 8;  // partial sums of a dot product: part j has the elements j, j + 8, ...

// The sum of column c of the parts.
template <int N, class F>
SPECDEC_HD void add_parts(const F (*s)[N], int c, F* sum) {
  *sum = ((s[0][c] + s[4][c]) + (s[2][c] + s[6][c])) + ((s[1][c] + s[5][c]) + (s[3][c] + s[7][c]));
}

// 1 / |x|, from x . x.
SPECDEC_HD float inverse_length(float squares) { return div_rn(1.0f, sqrt_rn(add_rn(squares, 1e-6f))); }

SPECDEC_HD float query_scale(int64_t key_width) { return div_rn(1.0f, sqrt_rn(static_cast<float>(key_width))); }

SPECDEC_HD void l2_normalize(float* x, int64_t size) {
  float parts[kDotParts][1], squares;
  for (int j = 0; j < kDotParts; ++j) {
    float sum = 0.0f;
    for (int64_t i = j; i < size; i += kDotParts) sum = add_rn(sum, mul_rn(x[i], x[i]));
    parts[j][0] = sum;
  }
  add_parts<1>(parts, 0, &squares);
  const float factor = inverse_length(squares);
  for (int64_t i = 0; i < size; ++i) x[i] = mul_rn(x[i], factor);
}

// A token of a value head: `size` elements of its key and query, and of its decay, if that is by channel
// (`decay_step` 1, else 0). `rate` is beta of the delta rule, dt of Mamba-2.
struct HeadToken {
  const float *k, *q, *decay;
  int64_t decay_step, size;
  float rate;
};

// A float, or a vector of floats at any address.
SPECDEC_HD void load_columns(const float* from, float* x) { *x = *from; }
SPECDEC_HD void store_columns(float x, float* to) { *to = x; }
template <class F>
SPECDEC_HD void load_columns(const float* from, F* x) {
  std::memcpy(x, from, sizeof(F));
}
template <class F>
SPECDEC_HD void store_columns(const F& x, float* to) {
  std::memcpy(to, &x, sizeof(F));
}

// A token in N vectors of neighbouring columns: from the state `before` it to that `after` it, rows `from` and `to`
// floats apart; the two may be one. v, update, out: of the columns. F: a float or a vector of floats. Not for CUDA,
// whose threads hold a state in registers.
template <bool kDelta, int N, class F>
SPECDEC_HD void recur(const float* before, int64_t from, float* after, int64_t to, const HeadToken& t, const float* v,
                      float* update, float* out) {
  constexpr int64_t kFloat = sizeof(float), kWidth = sizeof(F) / kFloat;
  F u[N], parts[kDotParts][N];
  for (int c = 0; c < N; ++c) load_columns(v + c * kWidth, &u[c]);
  if constexpr (kDelta) {
    for (int j = 0; j < kDotParts; ++j) {
      F sums[N] = {};
      for (int64_t i = j; i < t.size; i += kDotParts) {
        const float decay = t.decay[i * t.decay_step], k = t.k[i];
        for (int c = 0; c < N; ++c) {
          F state;
          load_columns(before + i * from + c * kWidth, &state);
          sums[c] += (decay * state) * k;
        }
      }
      for (int c = 0; c < N; ++c) parts[j][c] = sums[c];
    }
    for (int c = 0; c < N; ++c) {
      F held;
      add_parts<N>(parts, c, &held);
      u[c] = u[c] - held;
    }
  }
  for (int c = 0; c < N; ++c) {
    u[c] = t.rate * u[c];
    store_columns(u[c], update + c * kWidth);
  }
  for (int j = 0; j < kDotParts; ++j) {
    F sums[N] = {};
    for (int64_t i = j; i < t.size; i += kDotParts) {
      const float decay = t.decay[i * t.decay_step], k = t.k[i], q = t.q[i];
      for (int c = 0; c < N; ++c) {
        F state;
        load_columns(before + i * from + c * kWidth, &state);
        state = decay * state + k * u[c];
        store_columns(state, after + i * to + c * kWidth);
        sums[c] += state * q;
      }
    }
    for (int c = 0; c < N; ++c) parts[j][c] = sums[c];
  }
  for (int c = 0; c < N; ++c) {
    F sum;
    add_parts<N>(parts, c, &sum);
    store_columns(sum, out + c * kWidth);
  }
}

// A token again in `width` columns of `state`, rows `step` floats apart, from what was kept of it.
SPECDEC_HD void replay(float* state, int64_t step, int64_t size, int64_t width, const float* k, const float* update,
                       const float* decay, int64_t decay_step) {
  for (int64_t i = 0; i < size; ++i) {
    const float factor = decay[i * decay_step], key = k[i];
    float* row = state + i * step;
    for (int64_t c = 0; c < width; ++c) row[c] = add_rn(mul_rn(factor, row[c]), mul_rn(key, update[c]));
  }
}

}  // namespace specdec
