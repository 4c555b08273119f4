// apply_penalties: a block for the rows of one slot and a window of token ids, whose tallies are in shared memory.
#include "ops.h"
#include "row_launch.cuh"
#include "specdec/penalty.h"
#include "specdec_ops/apply_penalties.h"
#include "warp.cuh"

namespace specdec::cuda {

constexpr int kPenaltyThreads = 512;

// The tallies of a window, in shared memory.
struct TallyTable {
  int32_t* tallies;

  __device__ void add(int64_t i, int n) { atomicAdd(tallies + i, n); }
  __device__ void mark(int64_t i, int bits) { atomicOr(tallies + i, bits); }
  __device__ int take(int64_t i) { return atomicExch(tallies + i, 0); }
};

template <class L>
struct PenaltyLogits {
  typename L::Bits* logits;
  int64_t vocabulary;

  __device__ float load(int64_t row, int64_t token) const { return L::widen(logits[row * vocabulary + token]); }
  __device__ void store(int64_t row, int64_t token, float x) { logits[row * vocabulary + token] = L::narrow(x); }
};

// Threads share a stretch of ids. A visitor sees one id at a time.
template <class Visitor>
__device__ __forceinline__ void visit_ids(Visitor& v, const int64_t* ids, int64_t begin, int64_t end) {
  for (int64_t i = begin + threadIdx.x; i < end; i += kPenaltyThreads) v.tile(ids + i, i, 1);
}

// Ids of a list inside the window, one per thread; a repeated id is stored twice.
template <class L>
__device__ __forceinline__ void forbid(PenaltyLogits<L>& logits, const int64_t* ids, int64_t count, int64_t first,
                                       int64_t size, const PenaltyRows& rows, int64_t step_idx, int64_t min_dec_len,
                                       bool always) {
  for (int64_t i = threadIdx.x; i < count; i += kPenaltyThreads) {
    const int64_t token = ids[i];
    if (token < first || token - first >= size) continue;
    for (int64_t row = rows.first; row < rows.stop; ++row) {
      if (always || below_min_length(step_idx, rows.drafts(row), min_dec_len)) logits.store(row, token, -INFINITY);
    }
  }
}

// Grid: rows x windows. A block does nothing unless a slot's neighbouring rows begin with its row.
template <class L>
__global__ void __launch_bounds__(kPenaltyThreads, 1)
    apply_penalties_kernel(ApplyPenaltiesArgs a, typename L::Bits* logits, int64_t window_size) {
  int32_t* const tallies = ptx::dynamic_shared<int32_t>();
  wait_for_previous();
  const int64_t first = blockIdx.x, b = a.batch_id_per_token_output[first];
  if (b < 0 || b >= a.B || (first > 0 && a.batch_id_per_token_output[first - 1] == b)) return;
  int64_t stop = first + 1;
  while (stop < a.R_cap && a.batch_id_per_token_output[stop] == b) ++stop;

  const PenaltyParams params = {a.repetition[b], a.frequency[b], a.presence[b]};
  const PenaltyRows rows = {first, stop, a.cu_seqlens_q_output[b], a.S};
  const int64_t step_idx = a.step_idx[b], window_first = blockIdx.y * window_size;
  TallyTable table = {tallies};
  const TokenWindow<TallyTable> window = {table, window_first, min64(window_size, a.V - window_first)};
  PenaltyLogits<L> values = {logits, a.V};
  if (params.any()) {
    for (int64_t i = threadIdx.x; i < window.size; i += kPenaltyThreads) tallies[i] = 0;
    __syncthreads();
    const History history = history_bounds(a.L, a.prompt_lens[b], step_idx);
    const int64_t *text = a.token_ids_all + b * a.L, *drafts = a.draft_tokens + b * a.S;
    const int64_t seen_drafts = rows.drafts(stop - 1);
    TallyVisitor<TallyTable> tally = {window, history.prompt_end};
    visit_ids(tally, text, 0, history.end);
    DraftVisitor<TallyTable> mark = {window};
    visit_ids(mark, drafts, 1, seen_drafts + 1);
    __syncthreads();
    PenaltyVisitor<TallyTable, PenaltyLogits<L>, const int64_t*> penalty = {window, params, rows, values, drafts};
    visit_ids(penalty, text, 0, history.end);
    visit_ids(penalty, drafts, 1, seen_drafts + 1);
    __syncthreads();
  }
  forbid(values, a.bad_tokens + b * a.W, a.W, window.first, window.size, rows, 0, 0, true);
  forbid(values, a.end_tokens, a.E, window.first, window.size, rows, step_idx, a.min_dec_len[b], false);
}

void apply_penalties(const ApplyPenaltiesArgs& a, cudaStream_t stream) {
  const int64_t rows = a.R_cap, vocabulary = a.V;
  if (rows == 0 || vocabulary == 0 || a.B == 0) return;
  constexpr const char* kOp = "apply_penalties";
  const RowDevice device = row_device(kOp);
  const int64_t most = device.most_bytes / int64_t{sizeof(int32_t)};
  const unsigned windows = blocks_for(vocabulary, most);
  const int64_t window = blocks_for(vocabulary, windows);
  LaunchShape shape = {dim3(static_cast<unsigned>(rows), windows), dim3(kPenaltyThreads)};
  shape.shared_bytes = static_cast<size_t>(window) * sizeof(int32_t);
  with_float_type(a.logits_type, [&](auto type) {
    using L = decltype(type);
    static OfDevices allowed;
    allow_shared(kOp, device, allowed, apply_penalties_kernel<L>);
    launch(kOp, stream, shape, apply_penalties_kernel<L>, a, static_cast<typename L::Bits*>(a.logits), window);
  });
}
SPECDEC_OP(apply_penalties, kLimits)

}  // namespace specdec::cuda
