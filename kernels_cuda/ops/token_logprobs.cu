// token_logprobs: a cluster an accepted token.
#include "ops.h"
#include "row_launch.cuh"
#include "row_list.cuh"
#include "specdec_ops/token_logprobs.h"

namespace specdec::cuda {

// Fills an entry that has nothing to list; by one block.
__device__ __forceinline__ void fill_entry(const TokenLogprobsArgs& a, int64_t entry, int64_t first_id, float logprob) {
  for (int64_t i = threadIdx.x; i < a.N; i += kRowThreads) {
    a.ids[entry * a.N + i] = i == 0 ? first_id : -1;
    a.logprobs[entry * a.N + i] = logprob;
  }
  if (threadIdx.x == 0) a.ranks[entry] = -1;
}

template <class L, bool kResident>
__global__ void __launch_bounds__(kRowThreads, kListBlocks)
    token_logprobs_kernel(TokenLogprobsArgs a, const typename L::Bits* logits, const int32_t* last_offset) {
  using Part = RowPart<L, kResident>;
  __shared__ RowShared s;
  wait_for_previous();
  const int64_t entry = Cluster::index(), accepted = clamp64(*last_offset, 0, a.A_cap);
  const bool leads = Cluster::rank() == 0;
  const int64_t r = a.rows[entry], token = a.token_ids[entry];
  if (entry >= accepted || r < 0 || r >= a.R_cap || token < 0 || token >= a.V) {
    if (leads) fill_entry(a, entry, -1, 0.0f);
    return;
  }
  clear_shared(s);
  Cluster::arrive();
  const typename L::Bits* row = logits + r * a.V;
  const float chosen = L::widen(row[token]);
  Part part(row, static_cast<int>(a.V));
  ChunkSums<Part, Temperatures::kOne, CountsNotBelow> sums{1.0f, {chosen}};
  int32_t top;
  if (a.N == 1) {
    part.load(sums);
    top = meet_chunks(part, s, sums.own);
  } else {
    top = load_tops<L>(part, s, sums);
  }
  if (!has_distribution(top)) {
    if (leads) fill_entry(a, entry, token, kLowestLogprob);
    return;
  }
  publish(s.published[kRankCount], static_cast<uint64_t>(warp_sum(sums.count.count)));
  publish(s.published[kChunkShares], warp_sum(chunk_share({key_value(top), 1.0f}, sums.own)));
  RowLogprobs of_row = {key_value(top), 0.0f};
  const auto begin_entry = [&] {
    of_row.ln_total = ln_ratio(gather(s.published[kChunkShares]).total);
    const int64_t rank = static_cast<int64_t>(gather(s.published[kRankCount]).total);
    if (threadIdx.x != 0) return;
    a.ids[entry * a.N] = a.token_ids[entry];  // from memory: less is kept in registers through the passes
    a.logprobs[entry * a.N] = of_row.of(chosen);
    a.ranks[entry] = chosen == -INFINITY ? a.V : rank;  // what fills the edges of the row is -inf too
  };
  if (a.N == 1) {
    Cluster::sync();
    if (leads && warp_id() == 0) begin_entry();
    return;
  }
  list_row<L>(part, s, a.N - 1, [&](int64_t at, int n) {
    if (warp_id() >= (kSorted + 31) / 32) return;
    if (at == 0) begin_entry();
    const int i = static_cast<int>(threadIdx.x);
    if (i >= n) return;
    a.ids[entry * a.N + 1 + at + i] = s.top.sorted_id[i];
    a.logprobs[entry * a.N + 1 + at + i] = of_row.of(s.top.sorted_value[i]);
  });
}

void token_logprobs(const TokenLogprobsArgs& a, cudaStream_t stream) {
  launch_logit_rows("token_logprobs", stream, a.A_cap, a, false, [](auto type, auto resident) {
    return token_logprobs_kernel<decltype(type), decltype(resident)::value>;
  }, a.cu_batch_token_offset + a.B);
}
SPECDEC_OP(token_logprobs, kLimits)

}  // namespace specdec::cuda
