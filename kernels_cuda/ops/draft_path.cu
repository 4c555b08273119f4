// select_draft_path: a block a slot, whose rows follow one another. All that does not depend on the previous token is
// read ahead for many rows. Then eight lanes have the partial sums of a candidate's score, and a lane of the first warp
// has a candidate. An earlier launch clears the outputs.
#include "specdec/draft_path.h"

#include "launch.cuh"
#include "ops.h"
#include "recurrent.cuh"
#include "specdec/philox.h"
#include "specdec_ops/select_draft_path.h"

namespace specdec::cuda {

constexpr unsigned kClearThreads = 256;
constexpr int64_t kClearCells = 16;  // of a thread
constexpr int kPathEntries = served::kC_draft;
constexpr unsigned kPathThreads = kPathEntries * kDotParts;
constexpr int kPathAhead = 32;  // elements loaded at once
constexpr int kPathRows = 16;  // rows prepared at once
constexpr int64_t kPrefetched = 128;  // bytes
static_assert(kPathEntries == kWarp, "a lane for each candidate");

__global__ void __launch_bounds__(kClearThreads) clear_path_kernel(const __grid_constant__ SelectDraftPathArgs a) {
  wait_for_previous();
  let_next_start();
  const int64_t thread = int64_t{blockIdx.x} * kClearThreads + threadIdx.x,
                threads = int64_t{gridDim.x} * kClearThreads;
  for (int64_t r = thread; r < a.R_cap; r += threads) a.path_tokens[r] = -1;
  if (a.probs == nullptr) return;
  for (int64_t i = thread; i < a.R_cap * a.V; i += threads) a.probs[i] = 0.0f;
}

// This lane's part of the dot product for a candidate; `code` is that of the previous token, or null.
template <typename L, typename Bits>
__device__ __forceinline__ float path_part(const Bits* code, const Bits* hidden, const Bits* successor, int64_t width) {
  float sum = 0.0f;
  for (int64_t first = lane_id() % kDotParts; first < width; first += kDotParts * kPathAhead) {
    float products[kPathAhead];
#pragma unroll
    for (int u = 0; u < kPathAhead; ++u) {
      const int64_t i = first + u * kDotParts;
      const float before = code != nullptr && i < width ? L::widen(code[i]) : 0.0f;
      products[u] = i < width ? mul_rn(mul_rn(before, L::widen(hidden[i])), L::widen(successor[i])) : 0.0f;
    }
#pragma unroll
    for (int u = 0; u < kPathAhead; ++u) sum = add_rn(sum, products[u]);
  }
  return sum;
}

// Of up to kPathRows rows; ids of entries that are no candidates are -1.
struct PathRows {
  int64_t ids[kPathRows][kPathEntries], positions[kPathRows];
  float logits[kPathRows][kPathEntries];
  SamplingParams params[kPathRows];
  uint64_t randoms[kPathRows];
};

// A warp a row. The candidates' codes go to the L2 cache: those of successors, and those that the next row may read.
template <typename Bits>
__device__ __forceinline__ void prepare_rows(const SelectDraftPathArgs& a, int64_t first, int64_t count,
                                             PathRows& rows) {
  const int c = static_cast<int>(lane_id());
  for (int64_t i = warp_id(); i < count; i += kPathThreads / kWarp) {
    const int64_t r = first + i;
    int64_t* ids = rows.ids[i];
    ids[c] = c < a.C_draft ? a.path_ids[r * a.C_draft + c] : -1;
    rows.logits[i][c] = c < a.C_draft ? a.path_logits[r * a.C_draft + c] : 0.0f;
    if (c == 0) {
      rows.positions[i] = a.position[r];
      rows.params[i] = {a.row_temperature[r], a.row_top_p[r], a.row_min_p[r], a.row_top_k[r]};
      rows.randoms[i] = philox_words(a.row_seed[r], a.position[r], a.purpose).u64();
    }
    __syncwarp();
    const bool candidate = is_candidate(ids, c, a.V);
    __syncwarp();
    const int64_t code = ids[c] * a.D;
    for (int64_t j = 0; candidate && j < a.D; j += kPrefetched / sizeof(Bits)) {
      ptx::prefetch(static_cast<const Bits*>(a.successor_codes) + code + j);
      ptx::prefetch(static_cast<const Bits*>(a.predecessor_codes) + code + j);
    }
    if (!candidate) ids[c] = -1;
  }
}

// Writes the draft of row r, which is `i` of `rows`, and its probabilities; returns the draft, -1 if there is none. All
// lanes of a warp.
__device__ __forceinline__ int64_t draw_path_row(const SelectDraftPathArgs& a, int64_t r, int64_t i,
                                                 const PathRows& rows, const PathRow& row, uint64_t* masses) {
  const int c = static_cast<int>(lane_id());
  const bool there = c < row.count;
  const int32_t top = __reduce_max_sync(kAllLanes, there ? row.keys[c] : -kKeyInf);
  if (rows.positions[i] < 0 || !has_distribution(top)) return -1;
  const SamplingParams params = rows.params[i];
  if (is_greedy(params)) {
    const int largest = __ffs(static_cast<int>(__ballot_sync(kAllLanes, there && row.keys[c] == top))) - 1;
    if (c == largest) a.path_tokens[r] = row.ids[c];
    if (c == largest && a.probs != nullptr) a.probs[r * a.V + row.ids[c]] = 1.0f;
    return row.ids[largest];
  }
  const uint64_t counted = there ? row.mass(c, top, params) : 0;
  masses[c] = counted;
  __syncwarp();
  const uint64_t sum = warp_sum(counted), kept = there ? row.kept(c, masses, sum, params) : 0;
  __syncwarp();  // all lanes have read the masses
  masses[c] = kept;
  __syncwarp();
  const uint64_t total = warp_sum(kept);
  const bool drawn = there && row.draws(c, masses, draw_point(rows.randoms[i], total));
  if (a.probs != nullptr && kept > 0) a.probs[r * a.V + row.ids[c]] = mass_ratio(kept, total);
  const int winner = __ffs(static_cast<int>(__ballot_sync(kAllLanes, drawn))) - 1;
  const int64_t token = row.ids[winner];
  if (c == 0) a.path_tokens[r] = token;
  return token;
}

template <typename L>
__global__ void __launch_bounds__(kPathThreads, 1)
    select_draft_path_kernel(const __grid_constant__ SelectDraftPathArgs a) {
  using Bits = typename L::Bits;
  __shared__ PathRows rows;
  __shared__ int32_t keys[kPathEntries];
  __shared__ uint64_t masses[kPathEntries];
  __shared__ int64_t drawn;
  wait_for_previous();
  let_next_start();
  const auto *before = static_cast<const Bits*>(a.predecessor_codes),
             *after = static_cast<const Bits*>(a.successor_codes), *hidden = static_cast<const Bits*>(a.path_hidden);
  const int64_t b = blockIdx.x, first = rows_before(a.cu_seqlens_q_output, b, a.R_cap);
  const int64_t stop = row_offset(a.cu_seqlens_q_output[b + 1], a.R_cap);
  const int c = static_cast<int>(threadIdx.x / kDotParts);
  int64_t previous = a.anchor_tokens[b];
  for (int64_t r = first; r < stop; ++r) {
    const int64_t i = (r - first) % kPathRows;
    if (i == 0) {
      prepare_rows<Bits>(a, r, min64(stop - r, kPathRows), rows);
      __syncthreads();
    }
    const PathRow row = {keys, rows.ids[i], static_cast<int>(a.C_draft)};
    const int64_t id = rows.ids[i][c];
    const Bits* code = previous >= 0 && previous < a.V ? before + previous * a.D : nullptr;
    float sum = id >= 0 ? path_part<L>(code, hidden + r * a.D, after + id * a.D, a.D) : 0.0f;
#pragma unroll
    for (int half = kDotParts / 2; half > 0; half /= 2) sum = add_rn(sum, __shfl_xor_sync(kAllLanes, sum, half));
    if (c < row.count && threadIdx.x % kDotParts == 0) {
      keys[c] = id >= 0 ? order_key(add_rn(rows.logits[i][c], sum)) : -kKeyInf;
    }
    __syncthreads();
    if (warp_id() == 0) {
      const int64_t token = draw_path_row(a, r, i, rows, row, masses);
      if (lane_id() == 0) drawn = token;
    }
    __syncthreads();
    previous = drawn;
    if (previous < 0) return;
  }
}

constexpr Limit kPathLimits[] = {{"M", served::kM}, {"V", served::kV}, {"C_draft", served::kC_draft}};

void select_draft_path(const SelectDraftPathArgs& a, cudaStream_t stream) {
  if (a.R_cap == 0) return;
  const int64_t cells = a.probs != nullptr ? a.R_cap * a.V : a.R_cap;
  launch("select_draft_path", stream, {blocks_for(cells, kClearThreads * kClearCells), kClearThreads},
         clear_path_kernel, a);
  if (a.B == 0) return;
  with_float_type(a.path_hidden_type, [&](auto type) {
    launch("select_draft_path", stream, {static_cast<unsigned>(a.B), kPathThreads},
           select_draft_path_kernel<decltype(type)>, a);
  });
}
SPECDEC_OP(select_draft_path, kPathLimits)

}  // namespace specdec::cuda
