// The search of ngram_match: one pass over a slot's history for all sizes and both haystacks. The
// blocks of a cluster share a slot; they take turns on chunks in the policy's order of preference, and stop at the
// first chunk entirely after a match of the largest size.
#pragma once

#include "cluster.cuh"
#include "ngram_slot.cuh"

namespace specdec::cuda {

// Threads per block, 16-byte loads in flight per thread (a chunk is one such round), and blocks per multiprocessor.
template <int kThreadsOf, int kLoadsOf, int kResidentOf>
struct ScanShape {
  static constexpr int kThreads = kThreadsOf, kLoads = kLoadsOf;
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1000)
  static constexpr int kResident = kResidentOf < 4 ? kResidentOf : 4;  // with a fifth, all but sm_90 spill
#else
  static constexpr int kResident = kResidentOf;
#endif
  static constexpr int64_t kPairs = int64_t{kThreads} * kLoads;
};

// Ranks of matches (ngram_rank), kept by maximum.
__device__ __forceinline__ uint32_t peek(const uint32_t& best) { return *const_cast<const volatile uint32_t*>(&best); }

// A slot's history as pairs of tokens that lie on 16 bytes: pair v is tokens 2v - odd and 2v + 1 - odd.
struct TokenPairs {
  const int64_t* row;
  int64_t odd, stop;  // tokens from `stop` on are not looked at

  __device__ TokenPairs(const int64_t* tokens, int64_t end)
      : row(tokens), odd(static_cast<int64_t>(reinterpret_cast<uintptr_t>(tokens) >> 3 & 1)), stop(end) {}

  __device__ int64_t count() const { return (stop + odd + 1) / 2; }
  __device__ int64_t first(int64_t v) const { return 2 * v - odd; }
  // Tokens outside the history are 0.
  __device__ __forceinline__ longlong2 load(int64_t v) const {
    const int64_t i = first(v);
    if (i >= 0 && i + 1 < stop) return __ldg(reinterpret_cast<const longlong2*>(row + i));
    longlong2 pair = {0, 0};
    if (i >= 0 && i < stop) pair.x = row[i];
    if (i + 1 >= 0 && i + 1 < stop) pair.y = row[i + 1];
    return pair;
  }
};

// kLoads pairs of every thread of the block, in flight.
template <int kLoads>
struct Volley {
  longlong2 pair[kLoads];

  // The pairs from `start` on, `threads` times kLoads of them.
  __device__ __forceinline__ void load(const TokenPairs& pairs, int64_t start, int threads) {
    const int64_t i = pairs.first(start);
    if (i >= 0 && i + 2 * int64_t{kLoads} * threads <= pairs.stop) {
      const auto* from = reinterpret_cast<const longlong2*>(pairs.row + i) + threadIdx.x;
#pragma unroll
      for (int j = 0; j < kLoads; ++j) pair[j] = __ldg(from + j * threads);
    } else {
#pragma unroll
      for (int j = 0; j < kLoads; ++j) pair[j] = pairs.load(start + j * threads + threadIdx.x);
    }
  }

  // Bit i: whether token i of this thread is `token`.
  __device__ __forceinline__ uint32_t hits(int64_t token) const {
    uint32_t bits = 0;
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      bits |= static_cast<uint32_t>(pair[j].x == token) << (2 * j);
      bits |= static_cast<uint32_t>(pair[j].y == token) << (2 * j + 1);
    }
    return bits;
  }
};

// Whether no column of the chunk can be preferred to `best`.
__device__ __forceinline__ bool chunk_is_behind(const NgramSizes& sizes, uint32_t best, int64_t first_after,
                                                int64_t last_after) {
  const int64_t nearest = sizes.policy == MatchPolicy::kLatest ? last_after : first_after;
  return best > ngram_rank(sizes.policy, {sizes.most, nearest});
}

// `share`: let the cluster's other blocks know of a match of the largest size.
template <typename Text>
__device__ __forceinline__ void look_at(const NgramSizes& sizes, Text& text, int64_t after, uint32_t* best,
                                        bool share) {
  if (after < 1 || after >= sizes.text_end) return;
  const uint32_t known = peek(*best);
  if (ngram_rank(sizes.policy, {sizes.most, after}) < known) return;
  const int size = ngram_size_in(sizes, text, after);
  if (size < sizes.least) return;
  const uint32_t rank = ngram_rank(sizes.policy, {size, after});
  if (rank <= known) return;
  atomicMax(best, rank);
  if (share && size == sizes.most) {
    for (int k = 0; k < Cluster::size(); ++k) atomicMax(Cluster::of(best, k), rank);
  }
}

// Look at what a volley found.
template <int kLoads, typename Text>
__device__ __forceinline__ void look_at_hits(const NgramSizes& sizes, Text& text, int64_t last_token,
                                             const TokenPairs& pairs, const Volley<kLoads>& volley, int64_t start,
                                             int threads, uint32_t* best, bool share) {
  for (uint32_t hits = volley.hits(last_token); hits != 0; hits &= hits - 1) {
    const int bit = __ffs(static_cast<int>(hits)) - 1;
    const int64_t i = pairs.first(start + bit / 2 * threads + threadIdx.x) + bit % 2;
    if (i >= 0 && i < pairs.stop) look_at(sizes, text, i + 1, best, share);
  }
}

// Look at the columns after MTP drafts, or in pre_ids, of which the cluster's blocks take turns.
template <int kThreads, typename Text>
__device__ __forceinline__ void look_behind(const NgramSizes& sizes, Text& text, const ProposeText& at, unsigned rank,
                                            unsigned ranks, uint32_t* best) {
  const int64_t stride = int64_t{ranks} * kThreads;
  for (int64_t after = at.end + 1 + rank * kThreads + threadIdx.x; after < at.text_end; after += stride) {
    look_at(sizes, text, after, best, false);
  }
}

// Warp 0 of the block that has the slot's best match: append, and leave the counts to the next launch.
template <typename Text>
__device__ __forceinline__ void propose_match(const NgramMatchArgs& a, int64_t b, const ProposeSlot& slot,
                                              const NgramSizes& sizes, const Text& text, uint32_t best) {
  const int64_t count = slot.append(a, sizes, text, ngram_ranked(sizes.policy, best));
  if (lane_id() == 0) a.seq_lens_this_time[b] = pack_proposal(slot.base, count);
}

// Histories of any length.
template <bool kHybrid, typename Shape>
__global__ __launch_bounds__(Shape::kThreads, Shape::kResident) void ngram_scan_kernel(NgramMatchArgs a) {
  wait_for_previous();
  let_next_start();
  __shared__ uint32_t best;  // what the cluster sent this block
  const unsigned rank = Cluster::rank(), ranks = Cluster::size();
  const int64_t b = blockIdx.x / ranks;
  ProposeSlot slot;
  // The same in all blocks of the cluster.
  if (!slot.load<kHybrid>(a, b)) return;
  const NgramSizes sizes = slot.sizes(a);
  const SlotText text = slot.text();
  const TokenPairs pairs(slot.at.row, min64(slot.at.end, slot.at.text_end - 1));
  const int64_t all = pairs.count();
  // Chunks are counted in the policy's order; `done` pairs precede this block's next one. A long history starts with
  // short chunks, to read little for an early match.
  const auto start_of = [&](int64_t done, int64_t size) {
    return sizes.policy == MatchPolicy::kLatest ? all - done - size : done;
  };
  const bool staged = all > 2 * ranks * Shape::kPairs;
  int64_t done = staged ? rank * Shape::kThreads : rank * Shape::kPairs;
  Volley<1> early;
  Volley<Shape::kLoads> volley;
  if (staged) {
    early.load(pairs, start_of(done, Shape::kThreads), Shape::kThreads);
  } else {
    volley.load(pairs, start_of(done, Shape::kPairs), Shape::kThreads);
  }
  const int64_t last_token = sizes.possible() ? text[slot.at.text_end - 1] : 0;
  if (threadIdx.x == 0) best = 0;
  Cluster::sync();  // before others write to `best`
  if (sizes.possible()) {
    const bool several = ranks > 1;
    if (staged) {
      look_at_hits(sizes, text, last_token, pairs, early, start_of(done, Shape::kThreads), Shape::kThreads, &best,
                   several);
      Cluster::sync();
      done = ranks * Shape::kThreads + rank * Shape::kPairs;
    } else {
      look_at_hits(sizes, text, last_token, pairs, volley, start_of(done, Shape::kPairs), Shape::kThreads, &best,
                   several && all > ranks * Shape::kPairs);
      done += ranks * Shape::kPairs;
    }
    for (; done < all; done += ranks * Shape::kPairs) {
      const int64_t start = start_of(done, Shape::kPairs);
      if (chunk_is_behind(sizes, peek(best), pairs.first(start) + 1, pairs.first(start + Shape::kPairs))) break;
      volley.load(pairs, start, Shape::kThreads);
      look_at_hits(sizes, text, last_token, pairs, volley, start, Shape::kThreads, &best, several);
    }
    look_behind<Shape::kThreads>(sizes, text, slot.at, rank, ranks, &best);
    if (several) {
      __syncthreads();
      if (threadIdx.x == 0 && rank != 0 && peek(best) != 0) atomicMax(Cluster::of(&best, 0), peek(best));
    }
    Cluster::sync();
  }
  if (rank == 0 && warp_id() == 0) propose_match(a, b, slot, sizes, text, peek(best));
}

// Text of which this block has a part in shared memory: columns [low, high) of the history.
struct TileText {
  const int64_t *tile, *history, *drafts;
  int64_t low, high, end;

  __device__ int64_t operator[](int64_t i) const {
    if (i >= low && i < high) return tile[i - low];
    return i < end ? history[i] : drafts[i - end];
  }
};

// Rows that fit one volley of a cluster: loaded whole, before the slot's state is known.
template <bool kHybrid, typename Shape>
__global__ __launch_bounds__(Shape::kThreads, Shape::kResident) void ngram_short_rows_kernel(NgramMatchArgs a) {
  wait_for_previous();
  let_next_start();
  alignas(16) __shared__ int64_t tile[2 * Shape::kPairs];
  __shared__ uint32_t best;
  const unsigned rank = Cluster::rank(), ranks = Cluster::size();
  if (threadIdx.x == 0) best = 0;
  if (ranks > 1) Cluster::arrive_together();
  const int64_t b = blockIdx.x / ranks, start = rank * Shape::kPairs;
  TokenPairs pairs(a.token_ids_all + b * a.L, a.L);
  Volley<Shape::kLoads> volley;
  volley.load(pairs, start, Shape::kThreads);
  ProposeSlot slot;
  // The same in all blocks of the cluster.
  if (!slot.load<kHybrid>(a, b)) return;
  const NgramSizes sizes = slot.sizes(a);
  const SlotText whole = slot.text();
  int64_t last_token = 0;
  // One block has the whole row soon.
  if (ranks > 1 && sizes.possible()) last_token = whole[slot.at.text_end - 1];
#pragma unroll
  for (int j = 0; j < Shape::kLoads; ++j) {
    reinterpret_cast<longlong2*>(tile)[j * Shape::kThreads + threadIdx.x] = volley.pair[j];
  }
  __syncthreads();
  const int64_t low = max64(pairs.first(start), 0);
  const TileText text = {tile + (low - pairs.first(start)),
                         slot.at.row,
                         slot.at.tail,
                         low,
                         min64(pairs.first(start + Shape::kPairs), slot.at.end),
                         slot.at.end};
  if (sizes.possible()) {
    if (ranks == 1) last_token = text[slot.at.text_end - 1];
    pairs.stop = min64(slot.at.end, slot.at.text_end - 1);
    look_at_hits(sizes, text, last_token, pairs, volley, start, Shape::kThreads, &best, false);
    look_behind<Shape::kThreads>(sizes, text, slot.at, rank, ranks, &best);
    __syncthreads();
    if (ranks > 1) {
      Cluster::wait();  // `best` is ready in all blocks
      const uint32_t mine = peek(best);
      if (threadIdx.x < ranks && mine != 0) atomicMax(Cluster::of(&best, threadIdx.x), mine);
      Cluster::arrive_together();
      Cluster::wait();
    }
  }
  if (warp_id() != 0) return;
  // The block that has it: its tile holds what follows, as a rule.
  const NgramMatch match = ngram_ranked(sizes.policy, peek(best));
  const int64_t owner = match.size == 0 ? 0 : min64((match.after - 1 + pairs.odd) / (2 * Shape::kPairs), ranks - 1);
  if (rank == owner) propose_match(a, b, slot, sizes, text, peek(best));
}

}  // namespace specdec::cuda
