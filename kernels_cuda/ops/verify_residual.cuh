// verify_draft_tokens by probabilities: a cluster of blocks a slot. Every block determines the slot's emitted tokens
// itself. Only for a residual draw do they read the vocabulary, each its share, once: masses of short chunks are kept,
// and only the chunk with the point is reread.
#pragma once

#include "cluster.cuh"
#include "ops.h"
#include "verify_slot.cuh"

namespace specdec::cuda {

constexpr unsigned kResidualThreads = 512;
constexpr unsigned kResidualWarps = kResidualThreads / kWarp;
constexpr int kChunkVectors = 4;  // of a lane
constexpr int64_t kChunk = 4 * kWarp * kChunkVectors;  // elements
static_assert(served::kV / kChunk <= kResidualThreads, "a thread of the block for every chunk of a row");

// The residual in chunks: all but the first begin at 16-byte boundaries of p; the first has the elements before, the
// last those after the last whole vector.
struct ResidualRow {
  const float *p, *q;  // q: null where nothing or `one_hot` is taken away
  int64_t vocabulary, one_hot;
  int64_t head, vectors;  // elements before the first aligned one; whole vectors from there
  int chunks;

  __device__ ResidualRow(const float* target, const float* draft, int64_t size, int64_t taken)
      : p(target), q(draft), vocabulary(size), one_hot(taken) {
    head = min64((16 - static_cast<int64_t>(reinterpret_cast<uintptr_t>(p) & 15)) / 4 % 4, size);
    vectors = (size - head) / 4;
    chunks = static_cast<int>(max64((4 * vectors + kChunk - 1) / kChunk, 1));
  }
  __device__ int64_t bound(int chunk) const {
    return chunk == 0 ? 0 : chunk == chunks ? vocabulary : head + chunk * kChunk;
  }
  __device__ uint64_t mass(int64_t v) const {
    return ResidualTile{p + v, q == nullptr ? nullptr : q + v, v, 1, one_hot}.mass(0);
  }
  // This lane's vector k of a chunk; the last chunk may have fewer of them.
  __device__ int64_t vector(int chunk, int k) const {
    return chunk * (kChunk / 4) + static_cast<int64_t>(k * kWarp + lane_id());
  }
  // What this lane adds to a chunk's vectors: the elements around them, and `one_hot`, which they counted, taken away.
  __device__ uint64_t correction(int chunk) const {
    uint64_t sum = 0;
    const int64_t lane = lane_id(), behind = head + 4 * vectors;
    if (chunk == 0 && lane < head) sum += mass(lane);
    if (chunk == chunks - 1 && behind + lane < vocabulary) sum += mass(behind + lane);
    const bool counted = one_hot >= head && one_hot < behind && (one_hot - head) / kChunk == chunk;
    if (counted && lane == 0) sum -= prob_mass(p[one_hot]);
    return sum;
  }
};

// A sum of masses, their parts apart: two additions a mass. `flush` before 512 of them have come together.
class MassSum {
 public:
  __device__ __forceinline__ void add(float weight) {
    const detail::MassBits bits = detail::mass_bits(weight);
    high_ += bits.high;
    low_ += bits.low;
  }
  __device__ __forceinline__ void add(float4 weights) {
    add(weights.x);
    add(weights.y);
    add(weights.z);
    add(weights.w);
  }
  // `count`: weights since the last time. The sums of bits wrap around, but not what is left without their bias.
  __device__ __forceinline__ void flush(uint32_t count) {
    total_ += (static_cast<uint64_t>(high_ - count * detail::kOneBits) << detail::kLowMassBits) +
              (low_ - count * detail::kLowBits);
    high_ = low_ = 0;
  }
  __device__ __forceinline__ uint64_t total() const { return total_; }

 private:
  uint64_t total_ = 0;
  uint32_t high_ = 0, low_ = 0;
};

__device__ __forceinline__ uint64_t residual_of(float4 p, float4 q) {
  return residual_mass(prob_mass(p.x), prob_mass(q.x)) + residual_mass(prob_mass(p.y), prob_mass(q.y)) +
         residual_mass(prob_mass(p.z), prob_mass(q.z)) + residual_mass(prob_mass(p.w), prob_mass(q.w));
}

// Read once, or again much later: leave the cache to others.
__device__ __forceinline__ float4 load_vector(const float* x) { return __ldcs(reinterpret_cast<const float4*>(x)); }
__device__ __forceinline__ float4 load_cells(const float* x) {
  return {__ldcs(x), __ldcs(x + 1), __ldcs(x + 2), __ldcs(x + 3)};
}

// Vectors of a chunk; zeros, which have no mass, where the row has ended.
template <typename Load>
__device__ __forceinline__ void load_chunk(const ResidualRow& row, int chunk, const float* x, Load load,
                                           float4 (&vectors)[kChunkVectors]) {
#pragma unroll
  for (int k = 0; k < kChunkVectors; ++k) {
    const int64_t v = row.vector(chunk, k);
    vectors[k] = v < row.vectors ? load(x + row.head + 4 * v) : float4{0, 0, 0, 0};
  }
}

// The masses of chunks [low, high) into `sums`. The next chunk is on its way while one is added up.
__device__ __forceinline__ void sum_chunks(const ResidualRow& row, int low, int high, uint64_t* sums) {
  int chunk = low + static_cast<int>(warp_id());
  float4 next[kChunkVectors];
  if (chunk < high) load_chunk(row, chunk, row.p, load_vector, next);
  for (; chunk < high; chunk += kResidualWarps) {
    float4 now[kChunkVectors];
#pragma unroll
    for (int k = 0; k < kChunkVectors; ++k) now[k] = next[k];
    if (chunk + static_cast<int>(kResidualWarps) < high) {
      load_chunk(row, chunk + kResidualWarps, row.p, load_vector, next);
    }
    MassSum sum;
#pragma unroll
    for (int k = 0; k < kChunkVectors; ++k) sum.add(now[k]);
    sum.flush(4 * kChunkVectors);
    const uint64_t total = warp_sum(sum.total() + row.correction(chunk));
    if (lane_id() == 0) sums[chunk - low] = total;
  }
}

// The same where the masses of q are taken away.
__device__ __forceinline__ void sum_dense_chunks(const ResidualRow& row, int low, int high, uint64_t* sums) {
  const bool aligned = (reinterpret_cast<uintptr_t>(row.q + row.head) & 15) == 0;
  for (int chunk = low + static_cast<int>(warp_id()); chunk < high; chunk += kResidualWarps) {
    float4 p[kChunkVectors], q[kChunkVectors];
    load_chunk(row, chunk, row.p, load_vector, p);
    if (aligned) {
      load_chunk(row, chunk, row.q, load_vector, q);
    } else {
      load_chunk(row, chunk, row.q, load_cells, q);
    }
    uint64_t sum = row.correction(chunk);
#pragma unroll
    for (int k = 0; k < kChunkVectors; ++k) sum += residual_of(p[k], q[k]);
    sum = warp_sum(sum);
    if (lane_id() == 0) sums[chunk - low] = sum;
  }
}

// For rows without residual mass: a number that is largest for the argmax of p (largest mass, then smallest token).
__device__ __forceinline__ uint64_t best_order(uint64_t mass, int64_t token) {
  return mass << 20 | (0xFFFFFu - static_cast<uint64_t>(token));
}
__device__ __forceinline__ int64_t best_token(uint64_t order) {
  return 0xFFFFF - static_cast<int64_t>(order & 0xFFFFFu);
}

struct ResidualShared {
  uint64_t totals[kMaxCluster], bests[kMaxCluster];  // what the blocks of a cluster send each other
  uint64_t sums[kResidualThreads];  // of this block's chunks
  uint64_t parts[kResidualWarps];
  uint64_t before;  // the mass before the chunk that holds the point
  int chunk;
};

// The token at `point` in a chunk, before which there is the mass `before`. All threads of the block; the one that
// finds it returns it, the others -1.
__device__ inline int64_t find_token(const ResidualRow& row, int chunk, uint64_t point, uint64_t before,
                                     uint64_t* parts) {
  constexpr int64_t kEach = 2;
  static_assert(kChunk + 6 <= kEach * kResidualThreads, "the first and the last chunk have up to three elements more");
  const int64_t v = row.bound(chunk) + kEach * threadIdx.x, high = row.bound(chunk + 1);
  uint64_t mass[kEach], own = 0, total;
#pragma unroll
  for (int k = 0; k < kEach; ++k) own += mass[k] = v + k < high ? row.mass(v + k) : 0;
  uint64_t sum = before + block_below(own, parts, &total);
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    if (point >= sum && point < sum + mass[k]) return v + k;
    sum += mass[k];
  }
  return -1;
}

// The argmax of p over this block's part, as `best_order`; in all threads.
__device__ inline uint64_t best_of(const ResidualRow& row, int64_t low, int64_t high, uint64_t* parts) {
  uint64_t best = 0;
  for (int64_t v = low + threadIdx.x; v < high; v += kResidualThreads) {
    const uint64_t order = best_order(prob_mass(row.p[v]), v);
    best = order > best ? order : best;
  }
  best = warp_max(best);
  if (lane_id() == 0) parts[warp_id()] = best;
  __syncthreads();
  for (unsigned k = 0; k < kResidualWarps; ++k) best = parts[k] > best ? parts[k] : best;
  __syncthreads();
  return best;
}

// Draws a token; returned by one thread of the cluster, the others get -1. All threads of the cluster.
__device__ inline int64_t draw_residual(const ResidualRow& row, uint64_t random, ResidualShared& shared) {
  const unsigned rank = Cluster::rank(), blocks = Cluster::size();
  const int low = row.chunks * static_cast<int>(rank) / static_cast<int>(blocks);
  const int high = row.chunks * static_cast<int>(rank + 1) / static_cast<int>(blocks);
  if (row.q == nullptr) {
    sum_chunks(row, low, high, shared.sums);
  } else {
    sum_dense_chunks(row, low, high, shared.sums);
  }
  __syncthreads();
  const int chunk = low + static_cast<int>(threadIdx.x);
  const uint64_t own = chunk < high ? shared.sums[threadIdx.x] : 0, inclusive = warp_inclusive(own);
  uint64_t block_total;
  const uint64_t warps_below =
      block_warps_below(__shfl_sync(kAllLanes, inclusive, kWarp - 1), shared.parts, &block_total);
  if (threadIdx.x < blocks) *Cluster::of(&shared.totals[rank], threadIdx.x) = block_total;
  Cluster::sync();

  uint64_t total = 0, below = 0;
  for (unsigned k = 0; k < blocks; ++k) {
    below += k < rank ? shared.totals[k] : 0;
    total += shared.totals[k];
  }
  if (total == 0) {
    uint64_t best = best_of(row, row.bound(low), row.bound(high), shared.parts);
    if (threadIdx.x < blocks) *Cluster::of(&shared.bests[rank], threadIdx.x) = best;
    Cluster::sync();
    for (unsigned k = 0; k < blocks; ++k) best = shared.bests[k] > best ? shared.bests[k] : best;
    return rank == 0 && threadIdx.x == 0 ? best_token(best) : -1;
  }
  const uint64_t point = draw_point(random, total);
  if (point < below || point >= below + block_total) return -1;
  const uint64_t before = below + warps_below + inclusive - own;
  if (point >= before && point < before + own) {  // in exactly one thread
    shared.chunk = chunk;
    shared.before = before;
  }
  __syncthreads();
  return find_token(row, shared.chunk, point, shared.before, shared.parts);
}

// Pending work of phase 2: the token at `position`, from row `row` of the target's probabilities.
struct ResidualTask {
  bool wanted, rejected;
  int64_t position, row, draft;
  uint64_t random;
  EmitRule rule;
};

// Rows of slots that are not in use; `block` counts from the first block that has nothing else to do.
__device__ __forceinline__ void clear_slots(const VerifyDraftTokensArgs& a, int64_t block) {
  const int64_t cell = block * kResidualThreads + threadIdx.x, slot = a.B + cell / a.S;
  if (slot >= a.M) return;
  a.accept_tokens[slot * a.S + cell % a.S] = -1;
  if (cell % a.S == 0) a.accept_num[slot] = 0;
}

// Grid: a cluster for each slot in use, then blocks that clear the rows of the others.
__global__ void __launch_bounds__(kResidualThreads, 2)
    verify_by_probs_kernel(const __grid_constant__ VerifyDraftTokensArgs a) {
  __shared__ ResidualShared shared;
  __shared__ ResidualTask task;
  wait_for_previous();
  let_next_start();
  const unsigned blocks = Cluster::size();
  const int64_t b = blockIdx.x / blocks;
  if (b >= a.B) return clear_slots(a, int64_t{blockIdx.x} - a.B * blocks);

  const int64_t drafts = a.S - 1;
  const float* const draft_rows = a.draft_probs == nullptr ? nullptr : a.draft_probs + b * drafts * a.V;
  if (warp_id() == 0) {
    const LaneSlot<kWarp> own(a, b);
    VerifierByProbs<const float* const, const float* const> verifier = {
        a.target_probs, draft_rows == nullptr ? nullptr : &draft_rows, a.V};
    const int64_t passing = own.verifies(a.accept_policy) ? verifier.accepted(own.slot, own.lane, own.drafts) : 0;
    const EmittedDrafts emitted = own.phase1(a, passing == 1, false);
    const bool wanted = !emitted.stopped;
    if (own.lane == emitted.count) {
      task.wanted = wanted;
      task.rejected = emitted.rejected;
      task.position = own.lane;
      task.row = own.slot.row(own.lane);
      task.draft = own.drafts.own;
      task.random = own.slot.random(own.lane, Purpose::kResidual).u64();
      task.rule = own.rule;
    }
    if (Cluster::rank() == 0) own.store(a, emitted, -1, wanted);
  }
  Cluster::sync();  // also: from here on the blocks of the cluster reach each other's shared memory
  if (!task.wanted) return;

  const ResidualRow row(a.target_probs + task.row * a.V,
                        task.rejected && draft_rows != nullptr ? draft_rows + task.position * a.V : nullptr, a.V,
                        task.rejected && draft_rows == nullptr ? task.draft : -1);
  int64_t token = draw_residual(row, task.random, shared);
  if (token < 0) return;
  bool is_end = false;
  for (int64_t e = 0; e < a.E; ++e) is_end = is_end || a.end_tokens[e] == token;
  if (task.rule.replaces(task.position + 1, is_end)) token = a.end_tokens[0];
  a.accept_tokens[b * a.S + task.position] = token;
}

}  // namespace specdec::cuda
