// sample_target: a cluster a row.
#include "ops.h"
#include "row_filter.cuh"
#include "row_launch.cuh"
#include "specdec/philox.h"
#include "specdec_ops/sample_target.h"

namespace specdec::cuda {

__device__ __forceinline__ void write_undefined(const SampleTargetArgs& a, float logprob) {
  if (Cluster::rank() != 0 || threadIdx.x != 0) return;
  a.target_tokens[Cluster::index()] = -1;
  if (a.logprobs != nullptr) a.logprobs[Cluster::index()] = logprob;
  if (a.ranks != nullptr) a.ranks[Cluster::index()] = -1;
}

// Log-probability and rank of the row's token, held by one thread of the row (-1 in the others).
template <class L, class Part>
__device__ __forceinline__ void write_logprob(const SampleTargetArgs& a, Part& part, RowShared& s, int token) {
  if (token >= 0) {
    const float logit = part.value(token);
    for (int r = 0; r < Cluster::size(); ++r) Cluster::of(&s, r)->drawn.logit = logit;
  }
  Cluster::sync();
  const float chosen = s.drawn.logit;
  if (a.ranks != nullptr) {
    int count = 0;
    const uint32_t wanted = stripes_with(part, s, [&](float top) { return top >= chosen; });
    each_element(part, wanted, [&](float x, int) { count += x >= chosen ? 1 : 0; });
    publish(s.published[kRankCount], static_cast<uint64_t>(warp_sum(count)));
  }
  const bool raw = a.logprob_mode == LogprobMode::kRaw;
  if (a.logprobs != nullptr && raw) {
    ChunkSum own = own_chunk(part, s);
    if (sums_at(s.params, part.size()) != 1.0f) {
      ChunkSums<Part, Temperatures::kOne> sums{1.0f};
      part.load(sums);
      own = sums.own;
    }
    publish(s.published[kChunkShares], warp_sum(chunk_share({s.softmax.row_max, 1.0f}, own)));
  }
  Cluster::sync();
  if (Cluster::rank() != 0 || warp_id() != 0) return;
  if (a.ranks != nullptr) {
    const uint64_t rank = gather(s.published[kRankCount]).total;
    if (threadIdx.x == 0) a.ranks[Cluster::index()] = static_cast<int64_t>(rank);
  }
  if (a.logprobs != nullptr) {
    const uint64_t total = raw ? gather(s.published[kChunkShares]).total : s.drawn.total;
    const RowLogprobs of_row = {s.softmax.row_max, ln_ratio(total), raw ? 1.0f : s.softmax.inv_temperature};
    if (threadIdx.x == 0) a.logprobs[Cluster::index()] = of_row.of(chosen);
  }
}

// With kOneEach the row's first read begins before the row's parameters are known.
template <class Part, bool kBegun>
struct FirstRead {
  Part part;
  typename Part::Chunk chunk;

  __device__ __forceinline__ FirstRead(const typename Part::Bits* row, int64_t size)
      : part(row, static_cast<int>(size)), chunk(part, ~0u) {}
  __device__ __forceinline__ Part of(const typename Part::Bits*, int64_t, int) const { return part; }
  template <class L>
  __device__ __forceinline__ RowFound filtered(Part& row, RowShared& s, const SamplingParams& params, bool raw) {
    return filtered_row<L>(row, s, load_row<L>(row, s, params, raw, chunk));
  }
};
template <class Part>
struct FirstRead<Part, false> {
  __device__ __forceinline__ FirstRead(const typename Part::Bits*, int64_t) {}
  __device__ __forceinline__ Part of(const typename Part::Bits* row, int64_t size, int blocks) const {
    return Part(row, static_cast<int>(size), blocks);
  }
  template <class L>
  __device__ __forceinline__ RowFound filtered(Part& row, RowShared& s, const SamplingParams& params, bool raw) {
    return filtered_row<L>(row, s, load_row<L>(row, s, params, raw));
  }
};

template <class L, bool kResident, bool kOneEach>
__global__ void __launch_bounds__(kRowThreads, 2)
    sample_target_kernel(const __grid_constant__ SampleTargetArgs a, const typename L::Bits* logits) {
  __shared__ RowShared s;
  wait_for_previous();
  using Part = RowPart<L, kResident, kOneEach>;
  FirstRead<Part, kOneEach> first(logits + Cluster::index() * a.V, a.V);
  const int64_t position = a.position[Cluster::index()];
  // Before it is known whether they will be needed.
  const SamplingParams params = read_params(a, Cluster::index(), s);
  if (threadIdx.x == 0) s.drawn.random = philox_words(a.row_seed[Cluster::index()], position, a.purpose).u64();
  if (position < 0) return write_undefined(a, 0.0f);
  int blocks = Cluster::size();
  if (Cluster::launched() > blocks) {  // in a row with filters more would meet too often
    if (!is_greedy(params) && !Filters(params, a.V).any()) {
      blocks = Cluster::launched();
    } else if (Cluster::rank() >= blocks) {
      return;
    }
  }
  clear_shared(s);
  Cluster::arrive();
  Part part = first.of(logits + Cluster::index() * a.V, a.V, blocks);
  const bool raw = a.logprobs != nullptr && a.logprob_mode == LogprobMode::kRaw;
  const RowFound found = first.template filtered<L>(part, s, params, raw);
  int token = -1;
  switch (found.kind) {
    case RowKind::kUndefined: return write_undefined(a, kLowestLogprob);
    case RowKind::kGreedy:
      if (Cluster::rank() == 0 && threadIdx.x == 0) token = s.top.first_id;
      break;
    case RowKind::kSorted:
      if (Cluster::rank() == 0) token = draw_sorted(s);
      Cluster::sync();  // the leader stays until all have read its counts
      break;
    case RowKind::kChunks: token = draw_from_chunks(part, s); break;
    case RowKind::kKept: {
      const Published sums = gather(s.published[kKeptMass]);
      if (threadIdx.x == 0) s.drawn.total = sums.total;
      token = draw_token(part, s, kept_by(s, found.threshold), sums, found.own);
    }
  }
  if (token >= 0) a.target_tokens[Cluster::index()] = token;
  if (a.logprobs != nullptr || a.ranks != nullptr) write_logprob<L>(a, part, s, token);
}

void sample_target(const SampleTargetArgs& a, cudaStream_t stream) {
  launch_logit_rows("sample_target", stream, a.R_cap, a, a.logprobs == nullptr && a.ranks == nullptr,
                    [](auto type, auto fits) {
    using Fits = decltype(fits);
    return sample_target_kernel<decltype(type), Fits::value, std::is_same<Fits, OneEach>::value>;
  });
}
SPECDEC_OP(sample_target, kLimits)

}  // namespace specdec::cuda
