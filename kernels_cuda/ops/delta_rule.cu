// gated_delta_rule and mamba2_step: a warp has 16 columns of the state of a slot's value head in registers and takes
// the slot's tokens one after the other. Each of eight groups of four lanes has the rows of one partial sum of a dot
// product; a lane has four columns. The block, whose warps have neighbouring columns, prepares keys and queries of some
// tokens in shared memory. Blocks along y are slots; the last clears the rows of no slot.
#include "launch.cuh"
#include "ops.h"
#include "recurrent.cuh"
#include "recurrent_prompt.cuh"
#include "specdec_ops/advance_checkpoints.h"
#include "specdec_ops/gated_delta_rule.h"
#include "specdec_ops/mamba2_step.h"

namespace specdec::cuda {

constexpr unsigned kMaxWarps = 4;  // of a block
constexpr unsigned kMaxColumns = 64;  // of a block
constexpr int kPrepared = 8;  // tokens at a time
// Blocks on an SM, of up to 16 rows a lane; for three the compiler would spill registers on the newest devices.
#if __CUDA_ARCH__ >= 1000
constexpr int kStateBlocks = 2;
#else
constexpr int kStateBlocks = 3;
#endif
// Columns of a lane, so that a state takes 64 registers, and of a warp.
template <int kRows>
constexpr unsigned kLaneColumnsOf = kRows <= 16 ? 4 : 2;
template <int kRows>
constexpr unsigned kWarpColumns = kStateLanes * kLaneColumnsOf<kRows>;

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
  float v[kPrepared][kMaxColumns], rate[kPrepared];
};

// Rows first .. first + count - 1 of the batch, of value head h and columns from `column` on. All threads, between
// barriers.
template <typename Rule, int kRows, typename Prepared>
__device__ __forceinline__ void load_tokens(const typename Rule::Args& a, Prepared& tokens, int64_t first, int count,
                                            int64_t h, int64_t column) {
  const int width = static_cast<int>(a.D_k), columns = static_cast<int>(blockDim.x / kWarp * kWarpColumns<kRows>);
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

// What was kept of the positions from `first` on, as if it were tokens with these updates as values.
template <typename Rule, int kRows, typename Prepared>
__device__ __forceinline__ void load_kept(const typename Rule::Args& a, Prepared& tokens, int64_t b, RingEntry entry,
                                          int count, int64_t h, int64_t column) {
  const int width = static_cast<int>(a.D_k), columns = static_cast<int>(blockDim.x / kWarp * kWarpColumns<kRows>);
  const int64_t group = key_head(h, a.H_k, a.H_v);
  for (int t = 0; t < count; ++t, entry.advance()) {
    const int64_t at = b * a.R + entry.at, e = at * a.H_v + h;
    for (int i = static_cast<int>(threadIdx.x); i < width; i += static_cast<int>(blockDim.x)) {
      tokens.k[t][i] = a.replay_k[(at * a.H_k + group) * width + i];
      if constexpr (Rule::kChannels) tokens.decay[t][i] = a.replay_decay[e * width + i];
    }
    for (int c = static_cast<int>(threadIdx.x); c < columns; c += static_cast<int>(blockDim.x)) {
      if (column + c < a.D_v) tokens.v[t][c] = a.replay_u[e * a.D_v + column + c];
    }
    if constexpr (!Rule::kChannels) {
      if (threadIdx.x == 0) tokens.decay[t][0] = a.replay_decay[e];
    }
  }
}

// The other way: keys and decays of prepared tokens. By the block that has a head's first columns.
template <typename Rule, typename Prepared>
__device__ __forceinline__ void keep_tokens(const typename Rule::Args& a, const Prepared& tokens, int64_t b,
                                            RingEntry entry, int count, int64_t h) {
  const int width = static_cast<int>(a.D_k);
  const int64_t group = key_head(h, a.H_k, a.H_v);
  const bool records = records_key(h, a.H_k, a.H_v);
  for (int t = 0; t < count; ++t, entry.advance()) {
    const int64_t at = b * a.R + entry.at, e = at * a.H_v + h;
    for (int i = static_cast<int>(threadIdx.x); i < width; i += static_cast<int>(blockDim.x)) {
      if (records) a.replay_k[(at * a.H_k + group) * width + i] = tokens.k[t][i];
      if constexpr (Rule::kChannels) a.replay_decay[e * width + i] = tokens.decay[t][i];
    }
    if constexpr (!Rule::kChannels) {
      if (threadIdx.x == 0) a.replay_decay[e] = tokens.decay[t][0];
    }
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

// Each lane holds kRows rows of the state. Slots with `longest` rows or more are left to another launch. kWhole: a key
// fills the rows of all groups, and a lane's columns are whole and aligned to 16 bytes (at most 16 rows).
template <typename Rule, int kRows, bool kWhole, bool kReplay>
__global__ void __launch_bounds__(kMaxWarps* kWarp, kRows <= 16 ? kStateBlocks : 2)
    recurrent_kernel(const __grid_constant__ typename Rule::Args a, unsigned tiles, int64_t longest) {
  using Prepared = PreparedTokens<kRows, Rule::kChannels>;
  __shared__ Prepared tokens;
  wait_for_previous();
  let_next_start();
  const int64_t b = blockIdx.y, h = blockIdx.x / tiles;
  constexpr unsigned kLaneColumns = kLaneColumnsOf<kRows>;
  const unsigned columns = blockDim.x / kWarp * kWarpColumns<kRows>;
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
  const PackedRows rows = rows_of_slot(a, b, a.T_cap);
  if (rows.count == 0 || rows.count >= longest) return;

  const unsigned group = lane_id() / kStateLanes;
  const unsigned own = warp_id() * kWarpColumns<kRows> + lane_id() % kStateLanes * kLaneColumns;  // within the block's
  const int64_t column = block_column + own;
  const int64_t row_step = kDotParts * a.D_v, entry_step = a.H_v * a.D_k * a.D_v;
  float* base = (kReplay ? a.checkpoint + b * entry_step : a.states + b * a.R * entry_step) +
                (h * a.D_k + group) * a.D_v + column;
  const auto row_there = [&](int r) { return kWhole || static_cast<int64_t>(group) + r * kDotParts < a.D_k; };
  float state[kRows][kLaneColumns];
  RingEntry entry(rows.start, a.R);
  CheckpointMove move = {rows.start, -1};
  if constexpr (kReplay) move = checkpoint_move(a.checkpoint_lens[b], rows.start, rows.count, a.R);
  const float* before = kReplay ? base : base + entry.before(1) * entry_step;
  const bool known = move.at > 0;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if constexpr (kWhole) {
      const bool there = known && column < a.D_v;
      const float4 x = there ? __ldcs(reinterpret_cast<const float4*>(before + r * row_step)) : float4{};
      state[r][0] = x.x;
      state[r][1] = x.y;
      state[r][2] = x.z;
      state[r][3] = x.w;
    } else {
#pragma unroll
      for (unsigned c = 0; c < kLaneColumns; ++c) {
        const bool there = known && row_there(r) && column + c < a.D_v;
        state[r][c] = there ? before[r * row_step + c] : 0.0f;
      }
    }
  }

  const auto store_state = [&](float* to) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if constexpr (kWhole) {
        const float4 x = {state[r][0], state[r][1], state[r][2], state[r][3]};
        if (column < a.D_v) __stcs(reinterpret_cast<float4*>(to + r * row_step), x);
      } else {
#pragma unroll
        for (unsigned c = 0; c < kLaneColumns; ++c) {
          if (row_there(r) && column + c < a.D_v) to[r * row_step + c] = state[r][c];
        }
      }
    }
  };
  if constexpr (kReplay) {
    for (int64_t first = move.at; first < rows.start; first += kPrepared) {
      const int count = static_cast<int>(min64(rows.start - first, kPrepared));
      load_kept<Rule, kRows>(a, tokens, b, RingEntry(static_cast<uint32_t>(first), a.R), count, h, block_column);
      __syncthreads();
      for (int t = 0; t < count; ++t) {
        const float *k = tokens.k[t] + group, *decay = tokens.decay[t];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          if (!row_there(r)) continue;
          const float factor = Rule::kChannels ? decay[group + r * kDotParts] : decay[0], key = k[r * kDotParts];
#pragma unroll
          for (unsigned c = 0; c < kLaneColumns; ++c) {
            state[r][c] = add_rn(mul_rn(factor, state[r][c]), mul_rn(key, tokens.v[t][own + c]));
          }
        }
      }
      __syncthreads();
    }
    if (move.to == rows.start && move.at < rows.start) store_state(base);
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
    const bool records = kReplay && move.to <= rows.start;
    if constexpr (kReplay) {
      if (records && block_column == 0) keep_tokens<Rule>(a, tokens, b, entry, count, h);
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
      if constexpr (kReplay) {
        if (records) {
          float* to = a.replay_u + ((b * a.R + entry.at) * a.H_v + h) * a.D_v + column;
#pragma unroll
          for (unsigned c = 0; c < kLaneColumns; ++c) {
            if (group == c && column + c < a.D_v) to[c] = u[c];
          }
        } else if (first + t + 1 == rows.count) {
          store_state(base);
        }
      } else if (first + t >= kept) {
        store_state(base + entry.at * entry_step);
      }
      entry.advance();
    }
  }
}

constexpr Limit kStateLimits[] = {{"M", served::kM}, {"R", served::kR}, {"D_k", served::kD_k}};

namespace {

template <typename Rule, bool kReplay, int kRows, bool kWhole>
void launch_rows(const char* op, const typename Rule::Args& a, cudaStream_t stream, int64_t longest) {
  const int64_t warps_of_head = blocks_for(a.D_v, kWarpColumns<kRows>);
  // Few warps a block where that brings work to more multiprocessors.
  const int64_t each = (a.B * a.H_v * warps_of_head) / (2 * device_sms(op));
  const unsigned warps = static_cast<unsigned>(clamp64(each, 1, min64(warps_of_head, kMaxWarps)));
  const unsigned tiles = blocks_for(warps_of_head, warps);
  const LaunchShape shape = {dim3(blocks_for(a.H_v * tiles, 1), static_cast<unsigned>(a.B + 1)), warps * kWarp};
  launch(op, stream, shape, recurrent_kernel<Rule, kRows, kWhole, kReplay>, a, tiles, longest);
}

template <typename Rule, bool kReplay>
void launch_stored(const char* op, const typename Rule::Args& a, cudaStream_t stream, int64_t longest) {
  const auto* states = kReplay ? a.checkpoint : a.states;
  const bool whole = a.D_v % 4 == 0 && reinterpret_cast<uintptr_t>(states) % sizeof(float4) == 0;
  if (whole && a.D_k == 64) return launch_rows<Rule, kReplay, 8, true>(op, a, stream, longest);
  if (whole && a.D_k == 128) return launch_rows<Rule, kReplay, 16, true>(op, a, stream, longest);
  launch_rows<Rule, kReplay, 32, false>(op, a, stream, longest);
}

template <typename Rule>
void launch_recurrent(const char* op, const typename Rule::Args& a, cudaStream_t stream) {
  const bool replays = a.storage == Storage::kReplay;
  const auto whole = [](const void* x) { return reinterpret_cast<uintptr_t>(x) % sizeof(uint4) == 0; };
  const bool prompts = (a.D_k == 64 || a.D_k == 128) && whole(a.q) && whole(a.k) && whole(a.decay) &&
                       (!replays || a.R / 2 < kPromptRows) &&
                       may_have_prompts(a.B, a.T_cap, replays ? a.R / 2 : a.R - 1);
  const int64_t longest = prompts ? kPromptRows : a.T_cap + 1;
  if (replays) {
    launch_stored<Rule, true>(op, a, stream, longest);
  } else {
    launch_stored<Rule, false>(op, a, stream, longest);
  }
  if (!prompts) return;
  const dim3 grid(blocks_for(a.H_v * blocks_for(a.D_v, kPromptColumns), 1),
                  static_cast<unsigned>(min64(a.B, a.T_cap / kPromptRows)));
  const auto kernel = a.D_k == 64 ? recurrent_prompt_kernel<Rule, 8> : recurrent_prompt_kernel<Rule, 16>;
  launch(op, stream, {grid, kPromptThreads}, kernel, a);
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

constexpr unsigned kAdvanceThreads = 128;

__global__ void __launch_bounds__(kAdvanceThreads)
    advance_checkpoints_kernel(const __grid_constant__ AdvanceCheckpointsArgs a) {
  wait_for_previous();
  let_next_start();
  // A warp a slot.
  const int64_t b = int64_t{blockIdx.x} * (kAdvanceThreads / kWarp) + warp_id();
  if (b >= a.B) return;
  const PackedRows rows = rows_of_slot(a, b, a.num_rows);
  if (rows.count == 0 || lane_id() != 0) return;
  const CheckpointMove move = checkpoint_move(a.checkpoint_lens[b], rows.start, rows.count, a.ring);
  a.checkpoint_lens[b] = static_cast<int32_t>(min64(move.to, kInt32Max));
}

void advance_checkpoints(const AdvanceCheckpointsArgs& a, cudaStream_t stream) {
  launch("advance_checkpoints", stream, {blocks_for(a.B, kAdvanceThreads / kWarp), kAdvanceThreads},
         advance_checkpoints_kernel, a);
}
SPECDEC_OP(advance_checkpoints, kLimits)

}  // namespace specdec::cuda
