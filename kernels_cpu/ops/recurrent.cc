// causal_conv1d: an item is a tile of a slot's channels. gated_delta_rule and mamba2_step: an item is a tile of columns
// of a slot's value head. States are read and written in place, since each token's state has an entry of its own.
#include "specdec/recurrent.h"

#include <vector>

#include "../op.h"
#include "slot_rows.h"
#include "specdec/row_floats.h"
#include "specdec_ops/advance_checkpoints.h"
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
  const std::vector<int64_t> offsets = row_offsets(a.cu_seqlens_q, a.B, a.T_cap);
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
                               const float* v, float* update, float* out) {
  recur<kDelta, kVectors, Floats>(before, from, after, to, t, v, update, out);
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
    const int64_t at = row * a.H_v + h, step = decay_step(a);
    return {k, q, a.decay + (step > 0 ? at * a.D_k : at), step, a.D_k, a.beta[at]};
  }
  static int64_t decay_step(const Args& a) { return a.decay_per_channel ? 1 : 0; }
  static const float* skip(const Args&, int64_t) { return nullptr; }
};

struct Mamba2 {
  using Args = Mamba2StepArgs;
  static constexpr bool kDelta = false;

  static HeadToken token(const Args& a, int64_t row, int64_t h, float* k, float* q) {
    const int64_t at = row * a.H_v + h;
    return {k, q, a.decay + at, 0, a.D_k, a.dt[at]};
  }
  static int64_t decay_step(const Args&) { return 0; }
  static const float* skip(const Args& a, int64_t h) { return a.skip != nullptr ? a.skip + h : nullptr; }
};

// The checkpoint of a tile of columns, and what is kept of later positions.
template <class Rule>
class Checkpoint {
 public:
  Checkpoint(const typename Rule::Args& a, int64_t b, int64_t h, int64_t low, int64_t width)
      : a_(a), b_(b), h_(h), low_(low), width_(width), tile_(((b * a.H_v + h) * a.D_k) * a.D_v + low) {}

  // The state before position `start`, rows kColumns apart. Moves the checkpoint there if the step needs its entries.
  void load(float* state, int64_t start, int64_t count) {
    const CheckpointMove move = checkpoint_move(a_.checkpoint_lens[b_], start, count, a_.R);
    to_ = move.to;
    for (int64_t i = 0; i < a_.D_k; ++i) {
      const float* row = a_.checkpoint + tile_ + i * a_.D_v;
      for (int64_t c = 0; c < width_; ++c) state[i * kColumns + c] = move.at > 0 ? row[c] : 0.0f;
    }
    for (int64_t j = move.at; j < start; ++j) {
      const int64_t e = entry(j);
      replay(state, kColumns, a_.D_k, width_, a_.replay_k + key_entry(j) * a_.D_k, a_.replay_u + e * a_.D_v + low_,
             a_.replay_decay + e * decays(), Rule::decay_step(a_));
    }
    if (to_ == start && move.at < start) store(state);
  }
  // After the token at position j.
  void record(const float* state, int64_t j, const HeadToken& token, const float* updates) {
    if (to_ <= j) {
      const int64_t e = entry(j);
      std::copy_n(updates, width_, a_.replay_u + e * a_.D_v + low_);
      if (low_ == 0) {
        if (records_key(h_, a_.H_k, a_.H_v)) std::copy_n(token.k, a_.D_k, a_.replay_k + key_entry(j) * a_.D_k);
        std::copy_n(token.decay, decays(), a_.replay_decay + e * decays());
      }
    }
    if (to_ == j + 1) store(state);
  }

 private:
  int64_t entry(int64_t j) const { return (b_ * a_.R + j % a_.R) * a_.H_v + h_; }
  int64_t key_entry(int64_t j) const { return (b_ * a_.R + j % a_.R) * a_.H_k + key_head(h_, a_.H_k, a_.H_v); }
  int64_t decays() const { return Rule::decay_step(a_) > 0 ? a_.D_k : 1; }
  void store(const float* state) {
    for (int64_t i = 0; i < a_.D_k; ++i) {
      std::copy_n(state + i * kColumns, width_, a_.checkpoint + tile_ + i * a_.D_v);
    }
  }

  const typename Rule::Args& a_;
  int64_t b_, h_, low_, width_, tile_, to_ = -1;
};

template <class Rule, class L>
void run_tokens(const typename Rule::Args& a, Context threads) {
  using Bits = typename L::Bits;
  const auto *q = static_cast<const Bits*>(a.q), *k = static_cast<const Bits*>(a.k), *v = static_cast<const Bits*>(a.v);
  auto* out = static_cast<Bits*>(a.core_out);
  const std::vector<int64_t> offsets = row_offsets(a.cu_seqlens_q, a.B, a.T_cap);
  clear_tails(out, a.H_v * a.D_v, a.T_cap, offsets);
  const int64_t tiles = (a.D_v + kColumns - 1) / kColumns, entry = a.H_v * a.D_k * a.D_v;
  const int64_t ns = a.T_cap * a.D_k * kColumns * 8 / kFlopsPerNs / max64(a.B, 1);
  each(threads, a.B * a.H_v * tiles, ns, [&](int64_t item) {
    const int64_t b = item / (a.H_v * tiles), h = item / tiles % a.H_v, low = item % tiles * kColumns;
    const int64_t width = min64(a.D_v - low, kColumns), group = key_head(h, a.H_k, a.H_v);
    const int64_t first = offsets[static_cast<size_t>(b)], stop = offsets[static_cast<size_t>(b + 1)];
    if (first == stop) return;
    int64_t position = first_position(a.seq_lens_decoder[b]);
    const bool replays = a.storage == Storage::kReplay;
    float state[served::kD_k * kColumns];  // of REPLAY
    Checkpoint<Rule> checkpoint(a, b, h, low, width);
    if (replays) checkpoint.load(state, position, stop - first);
    float keys[served::kD_k], queries[served::kD_k], values[kColumns], updates[kColumns], sums[kColumns];
    for (int64_t row = first; row < stop; ++row, ++position) {
      const int64_t vectors = (row * a.H_k + group) * a.D_k, at = (row * a.H_v + h) * a.D_v + low;
      for (int64_t i = 0; i < a.D_k; ++i) keys[i] = L::widen(k[vectors + i]);
      for (int64_t i = 0; i < a.D_k; ++i) queries[i] = L::widen(q[vectors + i]);
      for (int64_t c = 0; c < width; ++c) values[c] = L::widen(v[at + c]);
      const HeadToken token = Rule::token(a, row, h, keys, queries);
      const float* before = state;
      float* after = state;
      int64_t from = kColumns, to = kColumns;
      if (!replays) {
        float* states = a.states + b * a.R * entry + h * a.D_k * a.D_v + low;
        before = position > 0 ? states + (position - 1) % a.R * entry : kZeros;
        from = position > 0 ? a.D_v : 0;
        after = states + position % a.R * entry;
        to = a.D_v;
      }
      if (width == kColumns) {
        recur_wide<Rule::kDelta>(before, from, after, to, token, values, updates, sums);
      } else {
        for (int64_t c = 0; c < width; ++c) {
          recur<Rule::kDelta, 1, float>(before + c, from, after + c, to, token, values + c, updates + c, sums + c);
        }
      }
      const float* skip = Rule::skip(a, h);
      for (int64_t c = 0; c < width; ++c) {
        const float sum = skip != nullptr ? add_rn(sums[c], mul_rn(*skip, values[c])) : sums[c];
        out[at + c] = L::narrow(sum);
      }
      if (replays) checkpoint.record(state, position, token, updates);
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

void advance_checkpoints(const AdvanceCheckpointsArgs& a, Context) {
  const std::vector<int64_t> offsets = row_offsets(a.cu_seqlens_q, a.B, a.num_rows);
  for (int64_t b = 0; b < a.B; ++b) {
    const int64_t count = offsets[static_cast<size_t>(b + 1)] - offsets[static_cast<size_t>(b)];
    if (count == 0) continue;
    const int64_t start = first_position(a.seq_lens_decoder[b]);
    a.checkpoint_lens[b] =
        static_cast<int32_t>(min64(checkpoint_move(a.checkpoint_lens[b], start, count, a.ring).to, kInt32Max));
  }
}
SPECDEC_OP(advance_checkpoints, kUnlimited)

}  // namespace specdec::cpu
