// The recurrences over the rows of slots with many, which are those of prompts: the same rounded operations as in
// delta_rule.cu, spread over more threads, since one prompt must fill the chip. A lane has kColumns columns of the rows
// of one partial sum. While a block computes some tokens, the next ones are on their way; sums of four outputs go
// through the lanes together.
#pragma once

#include "launch.cuh"
#include "recurrent.cuh"

namespace specdec::cuda {

constexpr unsigned kPromptColumns = 32;  // of a block
constexpr int kColumns = 1;  // of a lane
constexpr unsigned kPromptThreads = kPromptColumns / kColumns * kDotParts;
constexpr int kTogether = 4;  // tokens whose outputs are summed together

// Tokens as a block uses them. A key's elements j, j + 8, ... are part j; the padding brings the float4s that lanes
// load at once into different banks.
template <int kRows, bool kChannels>
struct alignas(16) PromptTokens {
  static constexpr int kCount = kChannels ? 8 : 16;
  using Parts = float[kDotParts][kRows + 4];

  Parts vectors[2 * kCount];  // key and query of each token
  Parts decays[kChannels ? kCount : 1];
  float v[kCount][kPromptColumns], decay[kCount], rate[kCount];
};

template <int kRows>
__device__ __forceinline__ void load_part(const float (&from)[kRows + 4], float (&to)[kRows]) {
#pragma unroll
  for (int r = 0; r < kRows; r += 4) {
    const float4 x = *reinterpret_cast<const float4*>(from + r);
    to[r] = x.x, to[r + 1] = x.y, to[r + 2] = x.z, to[r + 3] = x.w;
  }
}

template <int kRows>
__device__ __forceinline__ void store_part(const float (&from)[kRows], float (&to)[kRows + 4]) {
#pragma unroll
  for (int r = 0; r < kRows; r += 4) {
    *reinterpret_cast<float4*>(to + r) = make_float4(from[r], from[r + 1], from[r + 2], from[r + 3]);
  }
}

// Eight neighbouring elements as they lie in memory.
struct RawElements {
  uint4 low, high;  // `high` of float32 only

  __device__ __forceinline__ void load(const void* from, int64_t at, FloatType type) {
    if (type == FloatType::kFloat32) {
      low = static_cast<const uint4*>(from)[at / 4];
      high = static_cast<const uint4*>(from)[at / 4 + 1];
    } else {
      low = static_cast<const uint4*>(from)[at / 8];
    }
  }
  template <int kWidth>
  __device__ __forceinline__ void store(float (*parts)[kWidth], int row, FloatType type) const {
    const uint32_t words[] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int j = 0; j < kDotParts; ++j) {
      const auto half = static_cast<uint16_t>(words[j / 2] >> (j % 2 * 16));
      parts[j][row] = type == FloatType::kFloat32    ? f32_from_bits(words[j])
                      : type == FloatType::kBfloat16 ? bf16_to_f32(half)
                                                     : f16_to_f32(half);
    }
  }
};

// A thread's share of the next tokens, on its way from global to shared memory. A warp has whole keys and queries, so
// that it can normalise them by itself.
template <typename Rule, int kRows>
class PromptLoads {
 public:
  using Tokens = PromptTokens<kRows, Rule::kChannels>;

  // Rows first .. first + count - 1 of the batch.
  __device__ __forceinline__ void start(const typename Rule::Args& a, int64_t first, int count, int64_t h,
                                        int64_t column) {
    const int64_t group = key_head(h, a.H_k, a.H_v), width = kRows * kDotParts;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int vector = vector_of(i), row = static_cast<int>(lane_id() + i * kWarp) % kRows;
      const int64_t at = ((first + vector / 2) * a.H_k + group) * width + row * kDotParts;
      if (is_piece(i) && vector / 2 < count) pieces_[i].load(vector % 2 == 0 ? a.k : a.q, at, a.q_type);
    }
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const int64_t t = (threadIdx.x + i * kThreads) / kPromptColumns, c = column + threadIdx.x % kPromptColumns;
      const bool there = t < count && c < a.D_v;
      values_[i] = there ? load_bits(a.v, ((first + t) * a.H_v + h) * a.D_v + c, a.q_type) : 0;
    }
    if (static_cast<int>(threadIdx.x) < count) {
      const int64_t at = (first + threadIdx.x) * a.H_v + h;
      rate_ = Rule::rates(a)[at];
      if constexpr (!Rule::kChannels) decay_ = a.decay[at];
    }
    if constexpr (Rule::kChannels) {
#pragma unroll
      for (int i = 0; i < kDecays; ++i) {
        const int piece = static_cast<int>(threadIdx.x) + i * static_cast<int>(kThreads), t = piece / kRows;
        const int64_t at = ((first + t) * a.H_v + h) * width + piece % kRows * kDotParts;
        if (t < count) decays_[i].load(a.decay, at, FloatType::kFloat32);
      }
    }
  }

  __device__ __forceinline__ void finish(const typename Rule::Args& a, Tokens& tokens, int count) const {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int vector = vector_of(i), row = static_cast<int>(lane_id() + i * kWarp) % kRows;
      if (is_piece(i) && vector / 2 < count) pieces_[i].store(tokens.vectors[vector], row, a.q_type);
    }
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const unsigned at = threadIdx.x + i * kThreads;
      tokens.v[at / kPromptColumns][at % kPromptColumns] = float_of_bits(values_[i], a.q_type);
    }
    if (static_cast<int>(threadIdx.x) < count) {
      tokens.rate[threadIdx.x] = rate_;
      if constexpr (!Rule::kChannels) tokens.decay[threadIdx.x] = decay_;
    }
    if constexpr (Rule::kChannels) {
#pragma unroll
      for (int i = 0; i < kDecays; ++i) {
        const int piece = static_cast<int>(threadIdx.x) + i * static_cast<int>(kThreads), t = piece / kRows;
        if (t < count) decays_[i].store(tokens.decays[t], piece % kRows, FloatType::kFloat32);
      }
    }
    if constexpr (Rule::kDelta) normalize(a, tokens, count);
  }

 private:
  static constexpr unsigned kThreads = kPromptThreads, kWarps = kThreads / kWarp;
  static constexpr int kVectors = 2 * Tokens::kCount / kWarps;  // of a warp
  static constexpr int kPieces = (kVectors * kRows + static_cast<int>(kWarp) - 1) / static_cast<int>(kWarp);
  static constexpr int kValues = Tokens::kCount * kPromptColumns / kThreads;
  static constexpr int kDecays = (Tokens::kCount * kRows + static_cast<int>(kThreads) - 1) / static_cast<int>(kThreads);

  static __device__ __forceinline__ bool is_piece(int i) {
    return static_cast<int>(lane_id() + i * kWarp) < kVectors * kRows;
  }
  static __device__ __forceinline__ int vector_of(int i) {
    return static_cast<int>(warp_id()) * kVectors + static_cast<int>(lane_id() + i * kWarp) / kRows;
  }

  // Eight neighbouring lanes have the partial sums of one of the warp's vectors.
  template <typename Args>
  __device__ __forceinline__ void normalize(const Args& a, Tokens& tokens, int count) const {
    constexpr int kEach = static_cast<int>(kWarp) / kDotParts;
    const float scale = query_scale(kRows * kDotParts);
    const int part = static_cast<int>(lane_id()) % kDotParts;
    __syncwarp();
#pragma unroll
    for (int first = 0; first < kVectors; first += kEach) {
      const int own = first + static_cast<int>(lane_id()) / kDotParts;
      const int vector = static_cast<int>(warp_id()) * kVectors + own;
      const bool there = own < kVectors && vector / 2 < count;
      float x[kRows], squares = 0.0f;
      load_part<kRows>(tokens.vectors[there ? vector : 0][part], x);
      if (a.qk_l2norm) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) squares = add_rn(squares, mul_rn(x[r], x[r]));
      }
#pragma unroll
      for (int d = kDotParts / 2; d > 0; d /= 2) squares = add_rn(squares, __shfl_xor_sync(kAllLanes, squares, d));
      const float factor = inverse_length(squares);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (a.qk_l2norm) x[r] = mul_rn(x[r], factor);
        if (vector % 2 != 0) x[r] = mul_rn(x[r], scale);
      }
      if (there) store_part<kRows>(x, tokens.vectors[vector][part]);
    }
  }

  RawElements pieces_[kPieces], decays_[Rule::kChannels ? kDecays : 1];
  uint32_t values_[kValues];
  float rate_, decay_;
};

// Blocks on an SM, of a decay per head; for two the compiler would spill registers on the newest devices.
#if __CUDA_ARCH__ >= 1200
constexpr int kPromptBlocks = 1;
#else
constexpr int kPromptBlocks = 2;
#endif

// Blocks along y are slots with at least kPromptRows rows, along x value heads and their columns.
template <typename Rule, int kRows>
__global__ void __launch_bounds__(kPromptThreads, Rule::kChannels ? 1 : kPromptBlocks)
    recurrent_prompt_kernel(const __grid_constant__ typename Rule::Args a) {
  using Loads = PromptLoads<Rule, kRows>;
  using Tokens = typename Loads::Tokens;
  __shared__ Tokens buffers[2];
  wait_for_previous();
  let_next_start();
  const PromptItem slot = prompt_item(a, a.T_cap, blockIdx.y, a.T_cap);
  if (slot.b < 0) return;
  const PackedRows rows = slot.rows;

  const unsigned tiles = static_cast<unsigned>((a.D_v + kPromptColumns - 1) / kPromptColumns);
  const int64_t h = blockIdx.x / tiles, block_column = int64_t{blockIdx.x % tiles} * kPromptColumns;
  const unsigned group = lane_id() / kStateLanes;
  const unsigned own = (warp_id() * kStateLanes + lane_id() % kStateLanes) * kColumns;  // within the block's
  const int64_t column = block_column + own, row_step = kDotParts * a.D_v;
  const int64_t head_at = (h * a.D_k + group) * a.D_v + column, entry_step = a.H_v * a.D_k * a.D_v;
  const bool replays = a.storage == Storage::kReplay;
  float* const base = (replays ? a.checkpoint + slot.b * entry_step : a.states + slot.b * a.R * entry_step) + head_at;

  float state[kRows][kColumns];
  RingEntry entry(rows.start, a.R);
  const int64_t known =
      replays ? checkpoint_move(a.checkpoint_lens[slot.b], rows.start, rows.count, a.R).at : rows.start;
  const float* const before = replays ? base : base + entry.before(1) * entry_step;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) state[r][c] = known > 0 && column + c < a.D_v ? before[r * row_step + c] : 0.0f;
  }
  for (int64_t position = known; position < rows.start; ++position) {  // what was kept since the checkpoint
    const int64_t kept_at = slot.b * a.R + position % a.R, e = kept_at * a.H_v + h;
    const int64_t key_at = (kept_at * a.H_k + key_head(h, a.H_k, a.H_v)) * a.D_k + group;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t decay_at = Rule::kChannels ? e * a.D_k + group + r * kDotParts : e;
      const float factor = a.replay_decay[decay_at], key = a.replay_k[key_at + r * kDotParts];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const float update = column + c < a.D_v ? a.replay_u[e * a.D_v + column + c] : 0.0f;
        state[r][c] = add_rn(mul_rn(factor, state[r][c]), mul_rn(key, update));
      }
    }
  }

  const auto store_state = [&](float* to) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        if (column + c < a.D_v) to[r * row_step + c] = state[r][c];
      }
    }
  };
  // Token t of those prepared: the state after it, and this lane's part of its output.
  const auto take = [&](const Tokens& tokens, int t, float (&sums)[kColumns]) {
    float key[kRows], query[kRows], factors[Rule::kChannels ? kRows : 1], u[kColumns];
    load_part<kRows>(tokens.vectors[2 * t][group], key);
    load_part<kRows>(tokens.vectors[2 * t + 1][group], query);
    if constexpr (Rule::kChannels) {
      load_part<kRows>(tokens.decays[t][group], factors);
    } else {
      factors[0] = tokens.decay[t];
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      float sum = 0.0f;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        state[r][c] = mul_rn(factors[Rule::kChannels ? r : 0], state[r][c]);
        if constexpr (Rule::kDelta) sum = add_rn(sum, mul_rn(state[r][c], key[r]));
      }
      u[c] = sum;
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const float v = tokens.v[t][own + c];
      u[c] = mul_rn(tokens.rate[t], Rule::kDelta ? sub_rn(v, sum_of_groups(u[c])) : v);
      sums[c] = 0.0f;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        state[r][c] = add_rn(state[r][c], mul_rn(key[r], u[c]));
        sums[c] = add_rn(sums[c], mul_rn(state[r][c], query[r]));
      }
    }
  };

  // The token of four whose outputs this lane gets.
  const bool second = lane_id() / 8 % 2 != 0, last = lane_id() / 16 != 0;
  const int got = (last ? 2 : 0) + (second ? 1 : 0);
  const bool has_skip = Rule::has_skip(a);
  const float skip = has_skip ? Rule::skip(a, h) : 0.0f;
  const int64_t kept = replays ? rows.count : first_kept(rows.count, a.R);
  const auto count_at = [&](int64_t first) { return static_cast<int>(min64(rows.count - first, Tokens::kCount)); };
  Loads loads;
  loads.start(a, rows.first, count_at(0), h, block_column);
  loads.finish(a, buffers[0], count_at(0));
  unsigned at = 0;
  for (int64_t first = 0; first < rows.count; first += Tokens::kCount, at ^= 1) {
    const int count = count_at(first);
    const int64_t next = first + count;
    if (next < rows.count) loads.start(a, rows.first + next, count_at(next), h, block_column);
    __syncthreads();
    const Tokens& tokens = buffers[at];
    for (int t = 0; t < count; t += kTogether) {
      float sums[kTogether][kColumns] = {};
      if (t + kTogether <= count && first + t + kTogether <= kept) {
#pragma unroll
        for (int i = 0; i < kTogether; ++i) take(tokens, t + i, sums[i]);
      } else {
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          if (t + i >= count) break;
          take(tokens, t + i, sums[i]);
          const int64_t row = first + t + i;
          if (row >= kept) store_state(base + (rows.start + row) % a.R * entry_step);
        }
      }
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const auto meet = [](float mine, float given, int d) {
          return add_rn(mine, __shfl_xor_sync(kAllLanes, given, d));
        };
        const float x0 = meet(last ? sums[2][c] : sums[0][c], last ? sums[0][c] : sums[2][c], 16);
        const float x1 = meet(last ? sums[3][c] : sums[1][c], last ? sums[1][c] : sums[3][c], 16);
        float sum = meet(second ? x1 : x0, second ? x0 : x1, 8);
        sum = meet(sum, sum, 4);
        if (t + got < count && column + c < a.D_v && group % 2 == static_cast<unsigned>(c) % 2) {
          if (has_skip) sum = add_rn(sum, mul_rn(skip, tokens.v[t + got][own + c]));
          const int64_t row = rows.first + first + t + got;
          store_float(a.core_out, (row * a.H_v + h) * a.D_v + column + c, a.q_type, sum);
        }
      }
    }
    if (next < rows.count) loads.finish(a, buffers[at ^ 1], count_at(next));
  }
  if (replays) store_state(base);
}

}  // namespace specdec::cuda
