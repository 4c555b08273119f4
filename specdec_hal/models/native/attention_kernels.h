// The code of attention.h for the including file's instruction set.
#pragma once

#include "attention.h"
#include "vectors.h"

namespace specdec::attention {
namespace {

constexpr int kColumns = kRegisters == 32 ? 4 : 2;
// Queries worked on together, with kColumns vectors each, so that all fit into registers.
constexpr int kTile = 4;

constexpr int kVectors = kBlockKeys / kLanes;
static_assert(kVectors % kColumns == 0 && kPad % kLanes == 0, "blocks and rows of values are whole vectors");

constexpr float kInfinity = __builtin_inff();
constexpr float kLowest = -87.0f;  // below it exp is taken as 0: no denormals

// Prefetch, as large caches would stall at the start of each block.
inline void prefetch(const float* from, int count) {
  for (int i = 0; i < count; i += 16) __builtin_prefetch(from + i, 0, 2);
}

// exp(x) for x <= 0, within 2 ulp; 0 below kLowest.
inline Vector exp_of(Vector x) {
  const Vector shift = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer, which its low bits hold
  const Vector clamped = x < kLowest ? all(kLowest) : x;
  const Vector shifted = clamped * all(1.44269504f) + shift;
  const Vector n = shifted - shift;
  Vector r = clamped - n * all(0.693359375f);
  r = r - n * all(-2.12194440e-4f);
  Vector p = all(1.9875691500e-4f);
  p = p * r + all(1.3981999507e-3f);
  p = p * r + all(8.3334519073e-3f);
  p = p * r + all(4.1665795894e-2f);
  p = p * r + all(1.6666665459e-1f);
  p = p * r + all(5.0000001201e-1f);
  p = p * (r * r) + r + all(1.0f);
  const Integers power = ((Integers)shifted + 127) << 23;
  p = p * (Vector)power;
  return x < kLowest ? Vector{} : p;
}

// softcap * tanh(x / softcap), with an absolute error of some 1e-7 * softcap.
inline Vector capped(Vector x, float softcap) {
  const Vector minus = x < Vector{} ? x : -x;  // -|x|
  const Vector e = exp_of(minus * all(2.0f / softcap));
  const Vector cap = all(softcap) * ((all(1.0f) - e) / (all(1.0f) + e));
  return x < Vector{} ? -cap : cap;
}

// Rotated pairs: neighbours as complex numbers times complex numbers. Without factors a copy.
inline void rotate(const float* x, const float* factors, int64_t dim, float* out) {
  if (factors == nullptr) {
    for (int64_t i = 0; i < dim; ++i) out[i] = x[i];
    return;
  }
  for (int64_t i = 0; i < dim; i += 2) {
    out[i] = x[i] * factors[i] - x[i + 1] * factors[i + 1];
    out[i + 1] = x[i] * factors[i + 1] + x[i + 1] * factors[i];
  }
}

void store_span(const Call& call, const Span& span) {
  const int64_t dim = call.head_dim, padded = call.padded_dim(), half = call.half_block();
  for (int64_t t = 0; t < span.length; ++t) {
    const int64_t position = span.position + t, key = position % kBlockKeys;
    const float* const row = call.qkv + (span.row + t) * call.width + call.heads * dim;
    const float* const factors = call.rotary == nullptr ? nullptr : call.rotary + position * dim;
    for (int64_t h = 0; h < call.kv_heads; ++h) {
      float* const keys = span.cache + (position / kBlockKeys * call.kv_heads + h) * 2 * half;
      float* const values = keys + half + key * padded;
      const float* const k = row + h * dim;
      const float* const v = row + (call.kv_heads + h) * dim;
      if (factors == nullptr) {
        for (int64_t i = 0; i < dim; ++i) keys[i * kBlockKeys + key] = k[i];
      } else {
        for (int64_t i = 0; i < dim; i += 2) {
          float pair[2];
          rotate(k + i, factors + i, 2, pair);
          keys[i * kBlockKeys + key] = pair[0];
          keys[(i + 1) * kBlockKeys + key] = pair[1];
        }
      }
      for (int64_t i = 0; i < dim; ++i) values[i] = v[i];
    }
  }
}

// scores[r][c] = q[r] . key c, for the first `count` keys of a block and some after them. `ahead`: how far after it
// the block lies that is read next; 0 for none.
template <int R>
inline void score(const float* const* q, const float* keys, int64_t dim, int64_t count, float (*scores)[kBlockKeys],
                  int64_t ahead) {
  for (int64_t c = 0; c < count; c += kColumns * kLanes) {
    Vector sum[R][kColumns] = {};
    for (int64_t d = 0; d < dim; ++d) {
      if (ahead) prefetch(keys + ahead + d * kBlockKeys + c, kColumns * kLanes);
      Vector key[kColumns];
      for (int v = 0; v < kColumns; ++v) key[v] = load(keys + d * kBlockKeys + c + v * kLanes);
      for (int r = 0; r < R; ++r) {
        const Vector each = all(q[r][d]);
        for (int v = 0; v < kColumns; ++v) sum[r][v] = each * key[v] + sum[r][v];
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < kColumns; ++v) store(scores[r] + c + v * kLanes, sum[r][v]);
    }
  }
}

// sums[r] += weights[r][j] * value j, for keys j from `first` to `last` - 1 and columns [0, N * kLanes) of a value.
template <int R, int N>
inline void weigh(float* const* sums, const float (*weights)[kBlockKeys], const float* values, int64_t padded,
                  int64_t first, int64_t last, int64_t ahead) {
  Vector sum[R][N];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < N; ++v) sum[r][v] = load(sums[r] + v * kLanes);
  }
  for (int64_t j = first; j < last; ++j) {
    if (ahead) prefetch(values + ahead + j * padded, N * kLanes);
    Vector value[N];
    for (int v = 0; v < N; ++v) value[v] = load(values + j * padded + v * kLanes);
    for (int r = 0; r < R; ++r) {
      const Vector weight = all(weights[r][j]);
      for (int v = 0; v < N; ++v) sum[r][v] = weight * value[v] + sum[r][v];
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < N; ++v) store(sums[r] + v * kLanes, sum[r][v]);
  }
}

template <int R>
inline void weigh_all(float* const* sums, const float (*weights)[kBlockKeys], const float* values, int64_t padded,
                      int64_t first, int64_t last, int64_t ahead) {
  if (first >= last) return;
  float* at[R];
  int64_t d = 0;
  for (; d + kColumns * kLanes <= padded; d += kColumns * kLanes) {
    for (int r = 0; r < R; ++r) at[r] = sums[r] + d;
    weigh<R, kColumns>(at, weights, values + d, padded, first, last, ahead);
  }
  for (; d < padded; d += kLanes) {
    for (int r = 0; r < R; ++r) at[r] = sums[r] + d;
    weigh<R, 1>(at, weights, values + d, padded, first, last, ahead);
  }
}

// A query's state: its largest score and, relative to that, the sum of weights and the sum of values.
struct Query {
  int64_t first, position;  // the first and last key that it sees
  float *q, *sum;
  float largest, total;
  const float* bias;  // of its head, by key; null: none
};

// Keys `from` .. `to` - 1 of a block.
struct Keys {
  int64_t from, to;
};

// What a query sees of the block whose first key is `start`; empty: from >= to.
inline Keys seen(const Query& query, int64_t start) {
  const int64_t from = query.first - start, to = query.position + 1 - start;
  return {from < 0 ? 0 : from, to < kBlockKeys ? to : kBlockKeys};
}

// A block's scores, of which those of `keys` count, become weights relative to the largest score so far, and so do the
// query's sums.
inline void weights_of(float* scores, Keys keys, int64_t start, float softcap, Query* query, int64_t padded) {
  Integers lane;
  for (int j = 0; j < kLanes; ++j) lane[j] = j;
  Vector top = all(-kInfinity);
  for (int v = 0; v < kVectors; ++v) {
    const Integers at = lane + v * kLanes;
    const Integers hidden = (at >= static_cast<int32_t>(keys.to)) | (at < static_cast<int32_t>(keys.from));
    Vector x = load(scores + v * kLanes);
    if (softcap != 0.0f) x = capped(x, softcap);
    if (query->bias != nullptr) {
      x = x + (load(query->bias + start + v * kLanes) - all(query->bias[query->position]));
    }
    x = hidden ? all(-kInfinity) : x;
    store(scores + v * kLanes, x);
    top = x > top ? x : top;
  }
  float most = query->largest;
  for (int j = 0; j < kLanes; ++j) most = top[j] > most ? top[j] : most;
  Vector added = {};
  for (int v = 0; v < kVectors; ++v) {
    const Vector weight = exp_of(load(scores + v * kLanes) - all(most));
    store(scores + v * kLanes, weight);
    added = added + weight;
  }
  const float factor = exp_of(all(query->largest - most))[0];
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) added[j] = added[j] + added[j + width];
  }
  query->total = query->total * factor + added[0];
  query->largest = most;
  if (factor == 1.0f) return;
  for (int64_t d = 0; d < padded; d += kLanes) store(query->sum + d, load(query->sum + d) * all(factor));
}

template <int R>
inline void attend_block(Query* queries, const float* keys, const float* values, int64_t dim, int64_t padded,
                         int64_t start, float softcap, int64_t ahead) {
  Keys see[R], common = {0, kBlockKeys};
  int64_t most = 0;
  for (int r = 0; r < R; ++r) {
    see[r] = seen(queries[r], start);
    if (see[r].from >= see[r].to) see[r] = {0, 0};
    common.from = see[r].from > common.from ? see[r].from : common.from;
    common.to = see[r].to < common.to ? see[r].to : common.to;
    most = see[r].to > most ? see[r].to : most;
  }
  if (most == 0) return;
  if (common.to < common.from) common.to = common.from;
  alignas(64) float scores[R][kBlockKeys];
  const float* q[R];
  float* sums[R];
  for (int r = 0; r < R; ++r) q[r] = queries[r].q, sums[r] = queries[r].sum;
  score<R>(q, keys, dim, most, scores, ahead);
  for (int r = 0; r < R; ++r) {
    if (see[r].to > 0) weights_of(scores[r], see[r], start, softcap, queries + r, padded);
  }
  // Each query adds its keys in ascending order: those before the common ones, the common ones, and the rest.
  for (int r = 0; r < R; ++r) {
    const int64_t end = see[r].to < common.from ? see[r].to : common.from;
    weigh_all<1>(sums + r, scores + r, values, padded, see[r].from, end, 0);
  }
  weigh_all<R>(sums, scores, values, padded, common.from, common.to, ahead);
  for (int r = 0; r < R; ++r) {
    const int64_t from = see[r].from > common.to ? see[r].from : common.to;
    weigh_all<1>(sums + r, scores + r, values, padded, from, see[r].to, 0);
  }
}

void attend_queries(const Call& call, const Span& span, int64_t kv_head, int64_t first, int64_t last, float* scratch) {
  const int64_t dim = call.head_dim, padded = call.padded_dim(), group = call.group(), half = call.half_block();
  const int count = static_cast<int>(last - first);
  Query queries[kQueries] = {};
  float* out[kQueries] = {};
  float sinks[kQueries] = {};
  for (int i = 0; i < count; ++i) {
    const int64_t token = (first + i) / group, head = kv_head * group + (first + i) % group;
    float* const q = scratch + i * 2 * padded;
    const int64_t position = span.position + token;
    const int64_t before = call.window > 0 ? position + 1 - call.window : 0;
    const float* const bias = call.bias == nullptr ? nullptr : call.bias + head * call.biased;
    queries[i] = {before < 0 ? 0 : before, position, q, q + padded, -kInfinity, 0.0f, bias};
    rotate(call.qkv + (span.row + token) * call.width + head * dim,
           call.rotary == nullptr ? nullptr : call.rotary + position * dim, dim, q);
    if (call.scale != 1.0f) {
      for (int64_t d = 0; d < dim; ++d) q[d] *= call.scale;
    }
    for (int64_t d = 0; d < padded; ++d) queries[i].sum[d] = 0.0f;
    out[i] = call.out + ((span.row + token) * call.heads + head) * dim;
    if (call.sinks != nullptr) sinks[i] = call.sinks[head];
  }
  const int64_t begin = queries[0].first / kBlockKeys * kBlockKeys, end = queries[count - 1].position + 1;
  const int64_t block = call.kv_heads * 2 * half;
  const float* keys = span.cache + begin / kBlockKeys * block + kv_head * 2 * half;
  for (int64_t start = begin; start < end; start += kBlockKeys, keys += block) {
    int64_t ahead = start + kBlockKeys < end ? block : 0;
    const float cap = call.softcap;
    int i = 0;
    for (; i + kTile <= count; i += kTile, ahead = 0) {
      attend_block<kTile>(queries + i, keys, keys + half, dim, padded, start, cap, ahead);
    }
    const int rest = count - i;
    if (rest == 3) attend_block<3>(queries + i, keys, keys + half, dim, padded, start, cap, ahead);
    if (rest == 2) attend_block<2>(queries + i, keys, keys + half, dim, padded, start, cap, ahead);
    if (rest == 1) attend_block<1>(queries + i, keys, keys + half, dim, padded, start, cap, ahead);
  }
  for (int i = 0; i < count; ++i) {
    float factor = 1.0f, total = queries[i].total;
    if (call.sinks != nullptr) {
      const float most = sinks[i] > queries[i].largest ? sinks[i] : queries[i].largest;
      factor = exp_of(all(queries[i].largest - most))[0];
      total = total * factor + exp_of(all(sinks[i] - most))[0];
    }
    for (int64_t d = 0; d < dim; ++d) out[i][d] = queries[i].sum[d] * factor / total;
  }
}

}  // namespace
}  // namespace specdec::attention
