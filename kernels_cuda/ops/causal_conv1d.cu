// causal_conv1d: a thread has a channel of a slot and takes its rows one after the other, the inputs of the taps in
// registers. Blocks along y are slots; the last clears the rows of no slot. A slot with a prompt's rows is left to a
// second launch, where blocks along y are parts of such slots.
#include "launch.cuh"
#include "ops.h"
#include "recurrent.cuh"
#include "specdec_ops/causal_conv1d.h"

namespace specdec::cuda {

constexpr unsigned kConvThreads = 128;
constexpr int kConvAhead = 4;  // rows loaded at once
constexpr int64_t kConvPart = 32;  // rows of a part of a prompt
static_assert(served::kTaps <= kConvPart, "the inputs of a part are those of itself and of the part before it");

// kTaps: at least a.Taps. Taps and inputs stand at the end of their arrays. Slots with `longest` rows or more are left
// to kPrompts.
template <typename L, int kTaps, bool kPrompts>
__global__ void __launch_bounds__(kConvThreads)
    causal_conv1d_kernel(const __grid_constant__ CausalConv1dArgs a, int64_t longest) {
  using Bits = typename L::Bits;
  wait_for_previous();
  let_next_start();
  const int64_t c = int64_t{blockIdx.x} * kConvThreads + threadIdx.x;
  int64_t b = blockIdx.y, begin = 0;
  Bits* out = static_cast<Bits*>(a.conv_out);
  PackedRows rows;
  if constexpr (kPrompts) {
    const PromptItem item = prompt_item(a, a.T_cap, blockIdx.y, kConvPart);
    if (item.b < 0) return;
    b = item.b, begin = item.part * kConvPart, rows = item.rows;
  } else {
    if (b == a.B) {
      const FreeRows free(a);
      if (c < a.D) free.clear(out, a.T_cap, a.D, c);
      return;
    }
    rows = rows_of_slot(a, b, a.T_cap);
    if (rows.count >= longest) return;
  }
  if (c >= a.D || rows.count == 0) return;
  const int64_t end = kPrompts ? min64(begin + kConvPart, rows.count) : rows.count;

  const int unused = kTaps - static_cast<int>(a.Taps);
  const Bits* weight = static_cast<const Bits*>(a.conv_weight) + c * a.Taps;
  Bits* entries = static_cast<Bits*>(a.conv_ring) + b * a.R * a.D + c;
  RingEntry entry(rows.start, a.R);
  const Bits* x = static_cast<const Bits*>(a.conv_x) + rows.first * a.D + c;
  out += rows.first * a.D + c;
  float weights[kTaps], inputs[kTaps];
#pragma unroll
  for (int i = 0; i < kTaps; ++i) {
    weights[i] = i >= unused ? L::widen(weight[i - unused]) : 0.0f;
    const auto distance = static_cast<uint32_t>(kTaps - 1 - i);  // of the position before the first row's
    const bool there = i >= unused && distance > 0;
    if (begin > 0) {
      inputs[i] = there ? L::widen(x[(begin - distance) * a.D]) : 0.0f;
    } else {
      inputs[i] = there && distance <= rows.start ? L::widen(entries[entry.before(distance) * a.D]) : 0.0f;
    }
  }
  const float bias = a.conv_bias != nullptr ? L::widen(static_cast<const Bits*>(a.conv_bias)[c]) : 0.0f;
  const int64_t kept = first_kept(rows.count, a.R);
  if (kPrompts && begin == 0) {  // by the part that has read the ring
    for (int64_t t = kept; t < rows.count; ++t) entries[(rows.start + t) % a.R * a.D] = x[t * a.D];
  }
  for (int64_t first = begin; first < end; first += kConvAhead) {
    Bits ahead[kConvAhead];
#pragma unroll
    for (int u = 0; u < kConvAhead; ++u) ahead[u] = first + u < end ? x[(first + u) * a.D] : Bits{};
#pragma unroll
    for (int u = 0; u < kConvAhead; ++u) {
      const int64_t t = first + u;
      if (t >= end) break;
      inputs[kTaps - 1] = L::widen(ahead[u]);
      float sum = bias;
#pragma unroll
      for (int i = 0; i < kTaps; ++i) {
        if (i >= unused) sum = add_rn(sum, mul_rn(weights[i], inputs[i]));
      }
      out[t * a.D] = L::narrow(activated(sum, a.activation));
      if constexpr (!kPrompts) {
        if (t >= kept) entries[entry.at * a.D] = ahead[u];
        entry.advance();
      }
#pragma unroll
      for (int i = 0; i + 1 < kTaps; ++i) inputs[i] = inputs[i + 1];
    }
  }
}

constexpr Limit kConvLimits[] = {{"M", served::kM}, {"R", served::kR}, {"Taps", served::kTaps}};

void causal_conv1d(const CausalConv1dArgs& a, cudaStream_t stream) {
  if (a.D == 0) return;
  with_float_type(a.conv_x_type, [&](auto type) {
    using L = decltype(type);
    const bool few = a.Taps <= 4, prompts = may_have_prompts(a.B, a.T_cap, a.R - a.Taps + 1);
    const auto start = [&](auto kernel, int64_t items) {
      const dim3 grid(blocks_for(a.D, kConvThreads), static_cast<unsigned>(items));
      launch("causal_conv1d", stream, {grid, kConvThreads}, kernel, a, prompts ? kPromptRows : a.T_cap + 1);
    };
    start(few ? causal_conv1d_kernel<L, 4, false> : causal_conv1d_kernel<L, served::kTaps, false>, a.B + 1);
    if (!prompts) return;
    const int64_t parts = a.T_cap / kConvPart + min64(a.B, a.T_cap / kPromptRows);
    start(few ? causal_conv1d_kernel<L, 4, true> : causal_conv1d_kernel<L, served::kTaps, true>, parts);
  });
}
SPECDEC_OP(causal_conv1d, kConvLimits)

}  // namespace specdec::cuda
