// part_shares, part_kept, part_draw: a rank's shares of a draw's total, and the draw in one chunk.
#include <string>

#include "launch.cuh"
#include "ops.h"
#include "row_parts.cuh"
#include "specdec/philox.h"
#include "specdec_ops/part_draw.h"
#include "specdec_ops/part_kept.h"
#include "specdec_ops/part_shares.h"
#include "warp.cuh"

namespace specdec::cuda {

constexpr int kDrawThreads = 256;
constexpr int kDrawEach = kChunkIds / kDrawThreads;
static_assert(served::kV <= kDrawThreads * int64_t{kChunkIds}, "a thread for each chunk");

// A warp a row.
__global__ void __launch_bounds__(kWarp) part_shares_kernel(const __grid_constant__ PartSharesArgs a) {
  wait_for_previous();
  let_next_start();
  const int64_t r = blockIdx.x;
  const float temperature = a.row_temperature == nullptr ? 1.0f : a.row_temperature[r];
  const Softmax row = {top_of_ranks(a, r), drawn_at(temperature)};
  const bool used = a.position[r] >= 0;
  uint64_t sum = 0;
  for (int64_t c = threadIdx.x; c < a.Chunks; c += kWarp) {
    const int64_t at = r * a.Chunks + c;
    const uint64_t share = used ? chunk_share(row, {a.chunk_tops[at], static_cast<uint64_t>(a.chunk_masses[at])}) : 0;
    a.shares[at] = static_cast<int64_t>(share);
    sum += share;
  }
  sum = warp_sum(sum);
  if (threadIdx.x == 0) a.sums[r] = static_cast<int64_t>(sum);
}

// What min_p keeps, in rows that have it and no other filter. A warp a chunk; most have nothing that is kept.
template <class L>
__global__ void __launch_bounds__(kWarp)
    part_kept_kernel(const __grid_constant__ PartKeptArgs a, const typename L::Bits* logits) {
  constexpr int kAhead = 8;
  wait_for_previous();
  let_next_start();
  const int64_t r = blockIdx.x / a.Chunks, c = blockIdx.x % a.Chunks, at = r * a.Chunks + c;
  const SamplingParams params = params_of(a, r);
  const Filters filters(params, a.vocab_size);
  if (a.position[r] < 0 || is_greedy(params) || !filters.by_weight || filters.by_count) return;
  const Softmax softmax = {top_of_ranks(a, r), drawn_at(params.temperature)};
  uint64_t sum = 0;
  if (softmax(a.chunk_tops[at]) >= filters.least) {
    const int64_t first = c * kChunkIds;
    const int count = static_cast<int>(min64(a.V - first, kChunkIds));
    const typename L::Bits* x = logits + r * a.V + first;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kAhead * static_cast<int>(kWarp)) {
      typename L::Bits bits[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) bits[k] = x[min(i + k * static_cast<int>(kWarp), count - 1)];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const uint64_t mass = softmax(L::widen(bits[k]));
        if (i + k * static_cast<int>(kWarp) < count && mass >= filters.least) sum += mass;
      }
    }
  }
  sum = warp_sum(sum);
  if (threadIdx.x == 0) a.shares[at] = static_cast<int64_t>(sum);
}

// A block a row.
template <class L>
__global__ void __launch_bounds__(kDrawThreads)
    part_draw_kernel(const __grid_constant__ PartDrawArgs a, const typename L::Bits* logits) {
  __shared__ uint64_t parts[2][kDrawThreads / kWarp];
  __shared__ int found;
  __shared__ uint64_t rest_in_chunk;
  wait_for_previous();
  let_next_start();
  const int64_t r = blockIdx.x;
  const int tid = static_cast<int>(threadIdx.x);
  if (tid == 0) {
    found = -1;
    a.drawn[r] = kNowhere;
  }
  const SamplingParams params = params_of(a, r);
  const int64_t position = a.position[r];
  const Filters filters(params, a.vocab_size);
  if (position < 0 || is_greedy(params) || filters.by_count) return;
  uint64_t total = 0, before = 0, mine = 0;
  for (int64_t rank = 0; rank < a.Ranks; ++rank) {
    const uint64_t sum = static_cast<uint64_t>(a.sums_of_ranks[rank * a.R_cap + r]);
    total += sum;
    if (rank < a.rank) before += sum;
    if (rank == a.rank) mine = sum;
  }
  const uint64_t point = draw_point(philox_words(a.row_seed[r], position, a.purpose).u64(), total);
  if (point < before || point - before >= mine) return;
  __syncthreads();  // `found` is there

  const uint64_t share = tid < a.Chunks ? static_cast<uint64_t>(a.shares[r * a.Chunks + tid]) : 0;
  uint64_t all;
  const uint64_t below = before + block_below(share, parts[0], &all);
  if (point >= below && point - below < share) {
    found = tid;
    rest_in_chunk = point - below;
  }
  __syncthreads();
  if (found < 0) return;

  const int64_t chunk = found, first = chunk * kChunkIds + tid * kDrawEach;
  const uint64_t rest = rest_in_chunk;
  const float chunk_top = a.chunk_tops[r * a.Chunks + chunk];
  const Softmax row = {top_of_ranks(a, r), drawn_at(params.temperature)};
  const bool filtered = filters.by_weight;
  const Softmax masses = {filtered ? row.row_max : chunk_top, row.inv_temperature};
  const uint64_t weight = filtered ? kMassOne : chunk_weight(row, chunk_top);
  float logit[kDrawEach];
  uint64_t mass[kDrawEach], sum = 0;
#pragma unroll
  for (int j = 0; j < kDrawEach; ++j) {
    const bool real = first + j < a.V;
    logit[j] = L::widen(logits[r * a.V + (real ? first + j : a.V - 1)]);
    mass[j] = real ? masses(logit[j]) : 0;
    if (filtered && mass[j] < filters.least) mass[j] = 0;
    sum += mass[j];
  }
  uint64_t prefix = block_below(sum, parts[1], &all);
  if (draw_reached(prefix, weight, rest) || !draw_reached(prefix + sum, weight, rest)) return;
#pragma unroll
  for (int j = 0; j < kDrawEach; ++j) {
    if (draw_reached(prefix + mass[j], weight, rest)) {
      a.drawn[r] = sort_key(order_key(logit[j]), a.first_token + first + j);
      return;
    }
    prefix += mass[j];
  }
}

void part_shares(const PartSharesArgs& a, cudaStream_t stream) {
  if (a.R_cap == 0) return;
  launch("part_shares", stream, {dim3(static_cast<unsigned>(a.R_cap)), dim3(kWarp)}, part_shares_kernel, a);
}
SPECDEC_OP(part_shares, kLimits)

// Rows whose chunks are not those of the contract have no draw.
template <class Args>
void check_chunks(const Args& a) {
  if (a.Chunks == chunk_count(a.V)) return;
  throw std::invalid_argument("chunk_tops, shares: expected " + std::to_string(chunk_count(a.V)) +
                              " chunks of rows of " + std::to_string(a.V) + ", got " + std::to_string(a.Chunks) +
                              "; pass what part_chunks and part_shares wrote");
}

void part_kept(const PartKeptArgs& a, cudaStream_t stream) {
  check_chunks(a);
  if (a.R_cap == 0) return;
  with_float_type(a.logits_type, [&](auto type) {
    using L = decltype(type);
    launch("part_kept", stream, {dim3(static_cast<unsigned>(a.R_cap * a.Chunks)), dim3(kWarp)}, part_kept_kernel<L>, a,
           static_cast<const typename L::Bits*>(a.logits));
  });
}
SPECDEC_OP(part_kept, kLimits)

void part_draw(const PartDrawArgs& a, cudaStream_t stream) {
  check_chunks(a);
  if (a.R_cap == 0) return;
  with_float_type(a.logits_type, [&](auto type) {
    using L = decltype(type);
    launch("part_draw", stream, {dim3(static_cast<unsigned>(a.R_cap)), dim3(kDrawThreads)}, part_draw_kernel<L>, a,
           static_cast<const typename L::Bits*>(a.logits));
  });
}
SPECDEC_OP(part_draw, kLimits)

}  // namespace specdec::cuda
