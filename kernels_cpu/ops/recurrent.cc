// causal_conv1d: an item is a tile of a slot's channels. gated_delta_rule and mamba2_step: an item is a tile of columns
// of a slot's value head. States are read and written in place, since each token's state has an entry of its own.
#include "specdec/recurrent.h"

#include <vector>

#include "../op.h"
#include "specdec/row_floats.h"
#include "specdec_ops/causal_conv1d.h"
#include "specdec_ops/gated_delta_rule.h"
#include "specdec_ops/mamba2_step.h"

namespace specdec::cpu {
namespace {

constexpr int64_t kChannels = 64;  // of a convolution's item
constexpr int kVectors = 4;  // of an item's columns
constexpr int64_t kFlopsPerNs = 4;  // of a thread
typedef float Floats __attribute__((vector_size(32)));
constexpr int64_t kColumns = kVectors * sizeof(Floats) / sizeof(float);
constexpr float kZeros[kColumns] = {};

constexpr Limit kConvLimits[] = {{"Taps", served::kTaps}};
constexpr Limit kStateLimits[] = {{"D_k", served::kD_k}};

// m_0 .. m_B.
template <class Args>
std::vector<int64_t> row_offsets(const Args& a) {
  std::vector<int64_t> offsets(static_cast<size_t>(a.B + 1));
  int64_t most = 0;
  for (int64_t b = 0; b <= a.B; ++b) {
    most = max64(most, row_offset(a.cu_seqlens_q[b], a.T_cap));
    offsets[static_cast<size_t>(b)] = most;
  }
  return offsets;
}

template <class T>
void clear_tails(T* out, int64_t row_width, int64_t rows, const std::vector<int64_t>& offsets) {
  std::fill_n(out, offsets.front() * row_width, T{});
  std::fill_n(out + offsets.back() * row_width, (rows - offsets.back()) * row_width, T{});
}

template <class L>
void convolve(const CausalConv1dArgs& a, Context threads) {
  using Bits = typename L::Bits;
  const auto *x = static_cast<const Bits*>(a.conv_x), *weight = static_cast<const Bits*>(a.conv_weight),
             *bias = static_cast<const Bits*>(a.conv_bias);
  auto *ring = static_cast<Bits*>(a.conv_ring), *out = static_cast<Bits*>(a.conv_out);
  const std::vector<int64_t> offsets = row_offsets(a);
  clear_tails(out, a.D, a.T_cap, offsets);
  const int64_t tiles = (a.D + kChannels - 1) / kChannels;
  const int64_t ns = a.T_cap * kChannels * (a.Taps + 8) / kFlopsPerNs / max64(a.B, 1);
  each(threads, a.B * tiles, ns, [&](int64_t item) {
    const int64_t b = item / tiles, low = item % tiles * kChannels, width = min64(a.D - low, kChannels);
    const int64_t first = offsets[static_cast<size_t>(b)], count = offsets[static_cast<size_t>(b + 1)] - first;
    const int64_t start = first_position(a.seq_lens_decoder[b]);
    Bits* entries = ring + b * a.R * a.D + low;
    // The rows' inputs and those before them, oldest first.
    std::vector<const Bits*> inputs(static_cast<size_t>(count + a.Taps - 1));
    Bits before[served::kTaps][kChannels] = {};
    for (int64_t i = 0; i < a.Taps - 1; ++i) {
      const int64_t position = start - a.Taps + 1 + i;
      if (position >= 0) std::copy_n(entries + position % a.R * a.D, width, before[i]);
      inputs[static_cast<size_t>(i)] = before[i];
    }
    for (int64_t t = 0; t < count; ++t) inputs[static_cast<size_t>(a.Taps - 1 + t)] = x + (first + t) * a.D + low;
    for (int64_t t = 0; t < count; ++t) {
      float sums[kChannels];
      for (int64_t c = 0; c < width; ++c) sums[c] = bias != nullptr ? L::widen(bias[low + c]) : 0.0f;
      for (int64_t i = 0; i < a.Taps; ++i) {
        const Bits* input = inputs[static_cast<size_t>(t + i)];
        for (int64_t c = 0; c < width; ++c) {
          sums[c] = add_rn(sums[c], mul_rn(L::widen(weight[(low + c) * a.Taps + i]), L::widen(input[c])));
        }
      }
      Bits* row = out + (first + t) * a.D + low;
      for (int64_t c = 0; c < width; ++c) row[c] = L::narrow(activated(sums[c], a.activation));
    }
    for (int64_t t = first_kept(count, a.R); t < count; ++t) {
      std::copy_n(x + (first + t) * a.D + low, width, entries + (start + t) % a.R * a.D);
    }
  });
}

// kColumns columns.
template <bool kDelta>
SPECDEC_VECTOR void recur_wide(const float* before, int64_t from, float* after, int64_t to, const HeadToken& t,
                               const float* v, float* out) {
  recur<kDelta, kVectors, Floats>(before, from, after, to, t, v, out);
}

// What the two recurrences differ in.
struct Delta {
  using Args = GatedDeltaRuleArgs;
  static constexpr bool kDelta = true;

  static HeadToken token(const Args& a, int64_t row, int64_t h, float* k, float* q) {
    if (a.qk_l2norm) {
      l2_normalize(k, a.D_k);
      l2_normalize(q, a.D_k);
    }
    const float scale = query_scale(a.D_k);
    for (int64_t i = 0; i < a.D_k; ++i) q[i] = mul_rn(q[i], scale);
    const int64_t at = row * a.H_v + h;
    const bool channels = a.decay_per_channel;
    return {k, q, a.decay + (channels ? at * a.D_k : at), channels ? 1 : 0, a.D_k, a.beta[at]};
  }
  static const float* skip(const Args&, int64_t) { return nullptr; }
};

struct Mamba2 {
  using Args = Mamba2StepArgs;
  static constexpr bool kDelta = false;

  static HeadToken token(const Args& a, int64_t row, int64_t h, float* k, float* q) {
    const int64_t at = row * a.H_v + h;
    return {k, q, a.decay + at, 0, a.D_k, a.dt[at]};
  }
  static const float* skip(const Args& a, int64_t h) { return a.skip != nullptr ? a.skip + h : nullptr; }
};

template <class Rule, class L>
void run_tokens(const typename Rule::Args& a, Context threads) {
  using Bits = typename L::Bits;
  const auto *q = static_cast<const Bits*>(a.q), *k = static_cast<const Bits*>(a.k), *v = static_cast<const Bits*>(a.v);
  auto* out = static_cast<Bits*>(a.core_out);
  const std::vector<int64_t> offsets = row_offsets(a);
  clear_tails(out, a.H_v * a.D_v, a.T_cap, offsets);
  const int64_t tiles = (a.D_v + kColumns - 1) / kColumns, entry = a.H_v * a.D_k * a.D_v;
  const int64_t ns = a.T_cap * a.D_k * kColumns * 8 / kFlopsPerNs / max64(a.B, 1);
  each(threads, a.B * a.H_v * tiles, ns, [&](int64_t item) {
    const int64_t b = item / (a.H_v * tiles), h = item / tiles % a.H_v, low = item % tiles * kColumns;
    const int64_t width = min64(a.D_v - low, kColumns), group = key_head(h, a.H_k, a.H_v);
    const int64_t first = offsets[static_cast<size_t>(b)], stop = offsets[static_cast<size_t>(b + 1)];
    int64_t position = first_position(a.seq_lens_decoder[b]);
    float* states = a.states + b * a.R * entry + h * a.D_k * a.D_v + low;
    float keys[served::kD_k], queries[served::kD_k];
    float values[kColumns], sums[kColumns];
    for (int64_t row = first; row < stop; ++row, ++position) {
      const int64_t vectors = (row * a.H_k + group) * a.D_k, at = (row * a.H_v + h) * a.D_v + low;
      for (int64_t i = 0; i < a.D_k; ++i) keys[i] = L::widen(k[vectors + i]);
      for (int64_t i = 0; i < a.D_k; ++i) queries[i] = L::widen(q[vectors + i]);
      for (int64_t c = 0; c < width; ++c) values[c] = L::widen(v[at + c]);
      const HeadToken token = Rule::token(a, row, h, keys, queries);
      const float* before = position > 0 ? states + (position - 1) % a.R * entry : kZeros;
      const int64_t from = position > 0 ? a.D_v : 0;
      float* after = states + position % a.R * entry;
      if (width == kColumns) {
        recur_wide<Rule::kDelta>(before, from, after, a.D_v, token, values, sums);
      } else {
        for (int64_t c = 0; c < width; ++c) {
          recur<Rule::kDelta, 1, float>(before + c, from, after + c, a.D_v, token, values + c, sums + c);
        }
      }
      const float* skip = Rule::skip(a, h);
      for (int64_t c = 0; c < width; ++c) {
        const float sum = skip != nullptr ? add_rn(sums[c], mul_rn(*skip, values[c])) : sums[c];
        out[at + c] = L::narrow(sum);
      }
    }
  });
}

}  // namespace

void causal_conv1d(const CausalConv1dArgs& a, Context threads) {
  with_float_type(a.conv_x_type, [&](auto type) { convolve<decltype(type)>(a, threads); });
}
SPECDEC_OP(causal_conv1d, kConvLimits)

void gated_delta_rule(const GatedDeltaRuleArgs& a, Context threads) {
  with_float_type(a.q_type, [&](auto type) { run_tokens<Delta, decltype(type)>(a, threads); });
}
SPECDEC_OP(gated_delta_rule, kStateLimits)

void mamba2_step(const Mamba2StepArgs& a, Context threads) {
  with_float_type(a.q_type, [&](auto type) { run_tokens<Mamba2, decltype(type)>(a, threads); });
}
SPECDEC_OP(mamba2_step, kStateLimits)

}  // namespace specdec::cpu
