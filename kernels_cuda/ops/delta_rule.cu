// gated_delta_rule and mamba2_step: a warp has 16 columns of the state of a slot's value head in registers and takes
// the slot's tokens one after the other. Each of eight groups of four lanes has the rows of one partial sum of a dot
// product; a lane has four columns. The block, whose warps have neighbouring columns, prepares keys and queries of some
// tokens in shared memory. Blocks along y are slots; the last clears the rows of no slot.
#include "launch.cuh"
#include "ops.h"
#include "recurrent.cuh"
#include "specdec_ops/gated_delta_rule.h"
#include "specdec_ops/mamba2_step.h"

namespace specdec::cuda {

constexpr unsigned kStateLanes = 4;  // of a group
constexpr unsigned kLaneColumns = 4;  // of a lane
constexpr unsigned kWarpColumns = kStateLanes * kLaneColumns;  // of a warp
constexpr unsigned kMaxWarps = 4;  // of a block
constexpr int kPrepared = 8;  // tokens at a time
static_assert(kStateLanes * kDotParts == kWarp, "a group for each partial sum");

// What the recurrences differ in. kChannels: a decay for each channel of the key.
template <bool kByChannel>
struct DeltaRule {
  using Args = GatedDeltaRuleArgs;
  static constexpr bool kDelta = true, kChannels = kByChannel;

  static __device__ __forceinline__ const float* rates(const Args& a) { return a.beta; }
  static __device__ __forceinline__ float skip(const Args&, int64_t) { return 0.0f; }
  static __device__ __forceinline__ bool has_skip(const Args&) { return false; }
};

struct Mamba2Rule {
  using Args = Mamba2StepArgs;
  static constexpr bool kDelta = false, kChannels = false;

  static __device__ __forceinline__ const float* rates(const Args& a) { return a.dt; }
  static __device__ __forceinline__ float skip(const Args& a, int64_t h) { return a.skip[h]; }
  static __device__ __forceinline__ bool has_skip(const Args& a) { return a.skip != nullptr; }
};

// Tokens prepared by the block. Rows are 8 floats longer than a key, so that neighbouring tokens are in other banks.
template <int kRows, bool kChannels>
struct PreparedTokens {
  static constexpr int kWidth = kRows * kDotParts + kDotParts;

  float k[kPrepared][kWidth], q[kPrepared][kWidth], decay[kPrepared][kChannels ? kWidth : 1];
  float v[kPrepared][kMaxWarps * kWarpColumns], rate[kPrepared];
};

// Sum over the lanes that have the other rows of the same columns, in the contract's order.
__device__ __forceinline__ float sum_of_groups(float part) {
#pragma unroll
  for (int d = static_cast<int>(kWarp) / 2; d >= static_cast<int>(kStateLanes); d /= 2) {
    part = add_rn(part, __shfl_xor_sync(kAllLanes, part, d));
  }
  return part;
}

// Rows first .. first + count - 1 of the batch, of value head h and columns from `column` on. All threads, between
// barriers.
template <typename Rule, int kRows, typename Prepared>
__device__ __forceinline__ void load_tokens(const typename Rule::Args& a, Prepared& tokens, int64_t first, int count,
                                            int64_t h, int64_t column) {
  const int width = static_cast<int>(a.D_k), columns = static_cast<int>(blockDim.x / kWarp * kWarpColumns);
  const int64_t group = key_head(h, a.H_k, a.H_v);
  for (int t = 0; t < count; ++t) {
    const int64_t row = first + t;
    for (int i = static_cast<int>(threadIdx.x); i < width; i += static_cast<int>(blockDim.x)) {
      tokens.k[t][i] = load_float(a.k, (row * a.H_k + group) * width + i, a.q_type);
      tokens.q[t][i] = load_float(a.q, (row * a.H_k + group) * width + i, a.q_type);
      if constexpr (Rule::kChannels) tokens.decay[t][i] = a.decay[(row * a.H_v + h) * width + i];
    }
    for (int c = static_cast<int>(threadIdx.x); c < columns; c += static_cast<int>(blockDim.x)) {
      if (column + c < a.D_v) tokens.v[t][c] = load_float(a.v, (row * a.H_v + h) * a.D_v + column + c, a.q_type);
    }
  }
  for (int t = static_cast<int>(threadIdx.x); t < count; t += static_cast<int>(blockDim.x)) {
    const int64_t at = (first + t) * a.H_v + h;
    tokens.rate[t] = Rule::rates(a)[at];
    if constexpr (!Rule::kChannels) tokens.decay[t][0] = a.decay[at];
  }
}

// Normalises and scales keys and queries: eight neighbouring lanes have the partial sums of one.
template <typename Prepared>
__device__ __forceinline__ void normalize_tokens(const GatedDeltaRuleArgs& a, Prepared& tokens, int count) {
  const int width = static_cast<int>(a.D_k), vectors = 2 * count;
  const float scale = query_scale(a.D_k);
  const int part = static_cast<int>(threadIdx.x) % kDotParts, each = static_cast<int>(blockDim.x) / kDotParts;
  for (int first = 0; first < vectors; first += each) {
    const int vector = first + static_cast<int>(threadIdx.x) / kDotParts;
    const bool there = vector < vectors, key = vector % 2 == 0;
    float* x = key ? tokens.k[there ? vector / 2 : 0] : tokens.q[there ? vector / 2 : 0];
    float squares = 0.0f;
    if (there && a.qk_l2norm) {
      for (int i = part; i < width; i += kDotParts) squares = add_rn(squares, mul_rn(x[i], x[i]));
    }
#pragma unroll
    for (int d = kDotParts / 2; d > 0; d /= 2) squares = add_rn(squares, __shfl_xor_sync(kAllLanes, squares, d));
    if (!there) continue;
    const float factor = inverse_length(squares);
    for (int i = part; i < width; i += kDotParts) {
      float value = x[i];
      if (a.qk_l2norm) value = mul_rn(value, factor);
      x[i] = key ? value : mul_rn(value, scale);
    }
  }
}

// kRows of the state for each lane. kWhole: a key has as many elements as the groups' rows, and a lane's columns are
// whole and aligned to 16 bytes.
template <typename Rule, int kRows, bool kWhole>
__global__ void __launch_bounds__(kMaxWarps* kWarp, kRows <= 16 ? 3 : 2)
    recurrent_kernel(const __grid_constant__ typename Rule::Args a, unsigned tiles) {
  using Prepared = PreparedTokens<kRows, Rule::kChannels>;
  __shared__ Prepared tokens;
  wait_for_previous();
  let_next_start();
  const int64_t b = blockIdx.y, h = blockIdx.x / tiles;
  const unsigned columns = blockDim.x / kWarp * kWarpColumns;
  const int64_t block_column = int64_t{blockIdx.x % tiles} * columns;
  if (b == a.B) {
    const FreeRows free(a);
    const int64_t c = block_column + threadIdx.x, width = a.H_v * a.D_v;
    if (threadIdx.x >= columns || c >= a.D_v) return;
    if (a.q_type == FloatType::kFloat32) {
      free.clear(static_cast<float*>(a.core_out), a.T_cap, width, h * a.D_v + c);
    } else {
      free.clear(static_cast<uint16_t*>(a.core_out), a.T_cap, width, h * a.D_v + c);
    }
    return;
  }
  const PackedRows rows = rows_of_slot(a, b);
  if (rows.count == 0) return;

  const unsigned group = lane_id() / kStateLanes;
  const unsigned own = warp_id() * kWarpColumns + lane_id() % kStateLanes * kLaneColumns;  // within the block's
  const int64_t column = block_column + own;
  const int64_t row_step = kDotParts * a.D_v, entry_step = a.H_v * a.D_k * a.D_v;
  float* base = a.states + b * a.R * entry_step + (h * a.D_k + group) * a.D_v + column;
  const auto row_there = [&](int r) { return kWhole || static_cast<int64_t>(group) + r * kDotParts < a.D_k; };
  float state[kRows][kLaneColumns];
  RingEntry entry(rows.start, a.R);
  const float* before = base + entry.before(1) * entry_step;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if constexpr (kWhole) {
      const bool there = rows.start > 0 && column < a.D_v;
      const float4 x = there ? __ldcs(reinterpret_cast<const float4*>(before + r * row_step)) : float4{};
      state[r][0] = x.x;
      state[r][1] = x.y;
      state[r][2] = x.z;
      state[r][3] = x.w;
    } else {
#pragma unroll
      for (unsigned c = 0; c < kLaneColumns; ++c) {
        const bool there = rows.start > 0 && row_there(r) && column + c < a.D_v;
        state[r][c] = there ? before[r * row_step + c] : 0.0f;
      }
    }
  }

  const bool has_skip = Rule::has_skip(a);
  const float skip = has_skip ? Rule::skip(a, h) : 0.0f;
  const int64_t kept = first_kept(rows.count, a.R);
  for (int64_t first = 0; first < rows.count; first += kPrepared) {
    const int count = static_cast<int>(min64(rows.count - first, kPrepared));
    if (first > 0) __syncthreads();
    load_tokens<Rule, kRows>(a, tokens, rows.first + first, count, h, block_column);
    __syncthreads();
    if constexpr (Rule::kDelta) {
      normalize_tokens(a, tokens, count);
      __syncthreads();
    }
    for (int t = 0; t < count; ++t) {
      const float *k = tokens.k[t] + group, *q = tokens.q[t] + group, *decay = tokens.decay[t];
      const float rate = tokens.rate[t];
      float v[kLaneColumns], u[kLaneColumns], sums[kLaneColumns];
#pragma unroll
      for (unsigned c = 0; c < kLaneColumns; ++c) {
        v[c] = column + c < a.D_v ? tokens.v[t][own + c] : 0.0f;
        sums[c] = 0.0f;
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (!row_there(r)) continue;
        const float factor = Rule::kChannels ? decay[group + r * kDotParts] : decay[0];
        const float key = Rule::kDelta ? k[r * kDotParts] : 0.0f;
#pragma unroll
        for (unsigned c = 0; c < kLaneColumns; ++c) {
          state[r][c] = mul_rn(factor, state[r][c]);
          if constexpr (Rule::kDelta) sums[c] = add_rn(sums[c], mul_rn(state[r][c], key));
        }
      }
#pragma unroll
      for (unsigned c = 0; c < kLaneColumns; ++c) {
        u[c] = mul_rn(rate, Rule::kDelta ? sub_rn(v[c], sum_of_groups(sums[c])) : v[c]);
        sums[c] = 0.0f;
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (!row_there(r)) continue;
        const float key = k[r * kDotParts], query = q[r * kDotParts];
#pragma unroll
        for (unsigned c = 0; c < kLaneColumns; ++c) {
          state[r][c] = add_rn(state[r][c], mul_rn(key, u[c]));
          sums[c] = add_rn(sums[c], mul_rn(state[r][c], query));
        }
      }
#pragma unroll
      for (unsigned c = 0; c < kLaneColumns; ++c) {
        float sum = sum_of_groups(sums[c]);
        if (has_skip) sum = add_rn(sum, mul_rn(skip, v[c]));
        if (group == c && column + c < a.D_v) {
          store_float(a.core_out, ((rows.first + first + t) * a.H_v + h) * a.D_v + column + c, a.q_type, sum);
        }
      }
      if (first + t >= kept) {
        float* after = base + entry.at * entry_step;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          if constexpr (kWhole) {
            const float4 x = {state[r][0], state[r][1], state[r][2], state[r][3]};
            if (column < a.D_v) __stcs(reinterpret_cast<float4*>(after + r * row_step), x);
          } else {
#pragma unroll
            for (unsigned c = 0; c < kLaneColumns; ++c) {
              if (row_there(r) && column + c < a.D_v) after[r * row_step + c] = state[r][c];
            }
          }
        }
      }
      entry.advance();
    }
  }
}

constexpr Limit kStateLimits[] = {{"M", served::kM}, {"R", served::kR}, {"D_k", served::kD_k}};

namespace {

template <typename Rule>
void launch_recurrent(const char* op, const typename Rule::Args& a, cudaStream_t stream) {
  const int64_t warps_of_head = blocks_for(a.D_v, kWarpColumns);
  // Few warps a block where that brings work to more multiprocessors.
  const int64_t each = (a.B * a.H_v * warps_of_head) / (2 * device_sms(op));
  const unsigned warps = static_cast<unsigned>(clamp64(each, 1, min64(warps_of_head, kMaxWarps)));
  const unsigned tiles = blocks_for(warps_of_head, warps);
  const LaunchShape shape = {dim3(blocks_for(a.H_v * tiles, 1), static_cast<unsigned>(a.B + 1)), warps * kWarp};
  const bool whole = a.D_v % kLaneColumns == 0 && reinterpret_cast<uintptr_t>(a.states) % sizeof(float4) == 0;
  const auto with = [&](auto kernel) { launch(op, stream, shape, kernel, a, tiles); };
  if (whole && a.D_k == 64) return with(recurrent_kernel<Rule, 8, true>);
  if (whole && a.D_k == 128) return with(recurrent_kernel<Rule, 16, true>);
  if (whole && a.D_k == 256) return with(recurrent_kernel<Rule, 32, true>);
  with(recurrent_kernel<Rule, 32, false>);
}

}  // namespace

void gated_delta_rule(const GatedDeltaRuleArgs& a, cudaStream_t stream) {
  if (a.decay_per_channel) return launch_recurrent<DeltaRule<true>>("gated_delta_rule", a, stream);
  launch_recurrent<DeltaRule<false>>("gated_delta_rule", a, stream);
}
SPECDEC_OP(gated_delta_rule, kStateLimits)

void mamba2_step(const Mamba2StepArgs& a, cudaStream_t stream) {
  launch_recurrent<Mamba2Rule>("mamba2_step", a, stream);
}
SPECDEC_OP(mamba2_step, kStateLimits)

}  // namespace specdec::cuda
