// causal_conv1d: a thread has a channel of a slot and takes its rows one after the other, the inputs of the taps in
// registers. Blocks along y are slots; the last clears the rows of no slot.
#include "launch.cuh"
#include "ops.h"
#include "recurrent.cuh"
#include "specdec_ops/causal_conv1d.h"

namespace specdec::cuda {

constexpr unsigned kConvThreads = 128;
constexpr int kConvAhead = 4;  // rows loaded at once

// kTaps: at least a.Taps. Taps and inputs stand at the end of their arrays.
template <typename L, int kTaps>
__global__ void __launch_bounds__(kConvThreads) causal_conv1d_kernel(const __grid_constant__ CausalConv1dArgs a) {
  using Bits = typename L::Bits;
  wait_for_previous();
  let_next_start();
  const int64_t b = blockIdx.y, c = int64_t{blockIdx.x} * kConvThreads + threadIdx.x;
  Bits* out = static_cast<Bits*>(a.conv_out);
  if (b == a.B) {
    const FreeRows free(a);
    if (c < a.D) free.clear(out, a.T_cap, a.D, c);
    return;
  }
  const PackedRows rows = rows_of_slot(a, b, a.T_cap);
  if (c >= a.D || rows.count == 0) return;

  const int unused = kTaps - static_cast<int>(a.Taps);
  const Bits* weight = static_cast<const Bits*>(a.conv_weight) + c * a.Taps;
  Bits* entries = static_cast<Bits*>(a.conv_ring) + b * a.R * a.D + c;
  RingEntry entry(rows.start, a.R);
  float weights[kTaps], inputs[kTaps];
#pragma unroll
  for (int i = 0; i < kTaps; ++i) {
    weights[i] = i >= unused ? L::widen(weight[i - unused]) : 0.0f;
    const auto distance = static_cast<uint32_t>(kTaps - 1 - i);  // of the position before the first row's
    const bool there = i >= unused && distance > 0 && distance <= rows.start;
    inputs[i] = there ? L::widen(entries[entry.before(distance) * a.D]) : 0.0f;
  }
  const float bias = a.conv_bias != nullptr ? L::widen(static_cast<const Bits*>(a.conv_bias)[c]) : 0.0f;
  const Bits* x = static_cast<const Bits*>(a.conv_x) + rows.first * a.D + c;
  out += rows.first * a.D + c;
  const int64_t kept = first_kept(rows.count, a.R);
  for (int64_t first = 0; first < rows.count; first += kConvAhead) {
    Bits ahead[kConvAhead];
#pragma unroll
    for (int u = 0; u < kConvAhead; ++u) ahead[u] = first + u < rows.count ? x[(first + u) * a.D] : Bits{};
#pragma unroll
    for (int u = 0; u < kConvAhead; ++u) {
      const int64_t t = first + u;
      if (t >= rows.count) break;
      inputs[kTaps - 1] = L::widen(ahead[u]);
      float sum = bias;
#pragma unroll
      for (int i = 0; i < kTaps; ++i) {
        if (i >= unused) sum = add_rn(sum, mul_rn(weights[i], inputs[i]));
      }
      out[t * a.D] = L::narrow(activated(sum, a.activation));
      if (t >= kept) entries[entry.at * a.D] = ahead[u];
      entry.advance();
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
    const auto kernel = a.Taps <= 4 ? causal_conv1d_kernel<L, 4> : causal_conv1d_kernel<L, served::kTaps>;
    launch("causal_conv1d", stream, {dim3(blocks_for(a.D, kConvThreads), static_cast<unsigned>(a.B + 1)), kConvThreads},
           kernel, a);
  });
}
SPECDEC_OP(causal_conv1d, kConvLimits)

}  // namespace specdec::cuda
