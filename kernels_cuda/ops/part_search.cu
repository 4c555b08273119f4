// part_search, part_cut: where the order of a row is cut whose parts are on several ranks, digit by digit of the key.
#include <string>

#include "launch.cuh"
#include "ops.h"
#include "specdec/row_parts.h"
#include "specdec_ops/part_cut.h"
#include "specdec_ops/part_search.h"
#include "warp.cuh"

namespace specdec::cuda {

constexpr int kSearchThreads = 256;
constexpr int kSearchWarps = kSearchThreads / static_cast<int>(kWarp);
constexpr int kDigitBits = 4;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kFirstShift = 32 - kDigitBits;
constexpr int kListShift = 16;  // where some hundredths of a row that is not peaked are left

// Elements of the digits that are known and larger ones are not beyond the cut: `key` begins with these digits, `above`
// is what larger keys weigh, and `need` what is to be reached.
struct CutSearch {
  int64_t key, above, need;
};

// Whether row r is cut by what this call is about, and not yet drawn.
template <class Args>
__device__ __forceinline__ bool is_searched(const Args& a, int64_t r, const SamplingParams& params, float top) {
  const Filters filters(params, a.vocab_size);
  if (a.position[r] < 0 || is_greedy(params) || !(a.by_mass != 0 ? filters.by_mass : filters.by_count)) return false;
  return has_distribution(order_key(top)) && (a.settled == nullptr || !a.settled[r]);
}

// The state behind one more digit, at `shift`, in all lanes of a warp: ranks told what their elements weigh that have
// it, by descending values of it.
__device__ __forceinline__ CutSearch with_digit(const PartSearchArgs& a, int64_t r, const SamplingParams& params,
                                                int shift) {
  const int64_t* before = a.state_before + r * 3;
  CutSearch state = {before[0], before[1], before[2]};
  const int lane = static_cast<int>(lane_id());
  uint64_t own = 0;
  for (int64_t rank = 0; rank < a.Ranks && lane < kDigits; ++rank) {
    own += static_cast<uint64_t>(a.histograms_of_ranks[(rank * a.R_cap + r) * kDigits + lane]);
  }
  const uint64_t reach = static_cast<uint64_t>(state.above) + warp_inclusive(own);
  const uint64_t all = __shfl_sync(kAllLanes, reach, kDigits - 1);
  if (a.by_mass != 0 && shift == kFirstShift) {
    const bool counted = a.totals == nullptr || Filters(params, a.vocab_size).by_count;
    state.need = static_cast<int64_t>(nucleus(params.top_p, counted ? all : static_cast<uint64_t>(a.totals[r])));
  }
  const uint64_t need = static_cast<uint64_t>(min64(state.need, static_cast<int64_t>(all)));
  const int digit = __popc(__ballot_sync(kAllLanes, lane < kDigits && reach < need));
  const uint64_t larger = __shfl_sync(kAllLanes, reach, digit > 0 ? digit - 1 : 0);
  return {state.key + (int64_t{kDigits - 1 - digit} << shift), digit > 0 ? static_cast<int64_t>(larger) : state.above,
          static_cast<int64_t>(need)};
}

// Elements of chunk c of a row by one warp: f(logit, id).
template <class L, class F>
__device__ __forceinline__ void read_chunk(const typename L::Bits* row, int64_t size, int64_t c, F f) {
  constexpr int kAhead = 8;
  const int64_t first = c * kChunkIds + static_cast<int>(lane_id());
  for (int64_t from = first; from < first + kChunkIds; from += kAhead * kWarp) {
    typename L::Bits bits[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) bits[k] = row[min64(from + k * kWarp, size - 1)];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (from + k * kWarp < size) f(L::widen(bits[k]), from + k * kWarp);
    }
  }
}

// `splits` blocks a row. Sums of a thread are its own until the end. Once few elements are left they are listed, and
// the first block looks at those alone.
template <class L>
__global__ void __launch_bounds__(kSearchThreads)
    part_search_kernel(const __grid_constant__ PartSearchArgs a, const typename L::Bits* logits, int splits) {
  __shared__ uint64_t sums[kDigits][kSearchThreads];
  __shared__ int64_t key_so_far;
  wait_for_previous();
  let_next_start();
  const int64_t r = blockIdx.x / splits;
  const int split = static_cast<int>(blockIdx.x % splits), tid = static_cast<int>(threadIdx.x);
  const SamplingParams params = params_of(a, r);
  const Softmax softmax = {top_of_ranks(a, r), drawn_at(params.temperature)};
  if (!is_searched(a, r, params, softmax.row_max)) return;
  const int64_t listed = a.shift < kListShift ? a.listed[r] : a.Room + 1;
  if (listed <= a.Room && split > 0) return;
  if (warp_id() == 0) {
    const CutSearch state = a.histograms_of_ranks == nullptr ? CutSearch{INT32_MIN, 0, params.top_k}
                                                             : with_digit(a, r, params, a.shift + kDigitBits);
    if (tid == 0) key_so_far = state.key;
    if (tid == 0 && split == 0) {
      int64_t* to = a.state + r * 3;
      to[0] = state.key, to[1] = state.above, to[2] = state.need;
    }
  }
  for (int d = 0; d < kDigits; ++d) sums[d][tid] = 0;
  __syncthreads();

  const int32_t least = static_cast<int32_t>(key_so_far);
  const bool ties = a.shift < 0;  // of the whole key
  const int shift = ties ? 0 : a.shift;
  const uint32_t digits = ties ? 1 : kDigits;
  const bool weighs = a.by_mass != 0 && !ties, lists = a.shift == kListShift;
  const int64_t last = a.last_kept == nullptr ? kNowhere : a.last_kept[r];
  const auto look_at = [&](int32_t key, int64_t token) {
    const uint32_t digit = (static_cast<uint32_t>(key) - static_cast<uint32_t>(least)) >> shift;
    if (digit >= digits) return;
    const int64_t place = place_at(key, token);
    if (lists) {
      const uint64_t at = atomicAdd(reinterpret_cast<unsigned long long*>(a.listed + r), 1);
      if (at < static_cast<uint64_t>(a.Room)) a.list[r * a.Room + static_cast<int64_t>(at)] = place;
    }
    if (weighs && place < last) return;
    sums[digits - 1 - digit][tid] += weighs ? softmax(key_value(key)) : 1;
  };
  if (listed <= a.Room) {
    for (int64_t i = tid; i < listed; i += kSearchThreads) {
      const int64_t place = a.list[r * a.Room + i];
      look_at(place_key(place), place_token(place));
    }
  } else {
    for (int64_t c = split * kSearchWarps + static_cast<int>(warp_id()); c < a.Chunks; c += splits * kSearchWarps) {
      const float chunk_top = a.chunk_tops[r * a.Chunks + c];
      if (order_key(chunk_top) < least || (weighs && softmax(chunk_top) == 0)) continue;
      read_chunk<L>(logits + r * a.V, a.V, c,
                    [&](float logit, int64_t id) { look_at(order_key(logit), a.first_token + id); });
    }
  }
  __syncthreads();
  for (int d = static_cast<int>(warp_id()); d < kDigits; d += kSearchWarps) {
    uint64_t sum = 0;
    for (int i = static_cast<int>(lane_id()); i < kSearchThreads; i += static_cast<int>(kWarp)) sum += sums[d][i];
    sum = warp_sum(sum);
    if (lane_id() == 0 && sum != 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(a.histogram + r * kDigits + d), sum);
    }
  }
}

// A block a row. Where some of this part's elements with the key are kept, and some not, it looks for the last of them.
template <class L>
__global__ void __launch_bounds__(kSearchThreads)
    part_cut_kernel(const __grid_constant__ PartCutArgs a, const typename L::Bits* logits) {
  __shared__ uint32_t parts[kSearchWarps];
  wait_for_previous();
  let_next_start();
  const int64_t r = blockIdx.x;
  const int tid = static_cast<int>(threadIdx.x);
  const SamplingParams params = params_of(a, r);
  const Softmax softmax = {top_of_ranks(a, r), drawn_at(params.temperature)};
  if (!is_searched(a, r, params, softmax.row_max)) {
    if (tid == 0) a.last_kept[r] = a.kept_before == nullptr ? kNowhere : a.kept_before[r];
    return;
  }
  const int32_t key = static_cast<int32_t>(a.state[r * 3]);
  const int64_t above = a.state[r * 3 + 1], need = a.state[r * 3 + 2];
  const int64_t weight = a.by_mass != 0 ? static_cast<int64_t>(softmax(key_value(key))) : 1;
  int64_t wanted = weight == 0 ? 0 : (need - above + weight - 1) / weight;
  for (int64_t rank = 0; rank < a.rank; ++rank) wanted -= a.ties_of_ranks[rank * a.R_cap + r];
  if (wanted <= 0 || wanted >= a.ties_of_ranks[a.rank * a.R_cap + r]) {
    if (tid == 0) a.last_kept[r] = place_at(wanted <= 0 ? key + 1 : key, kLastToken);
    return;
  }
  uint64_t seen = 0;
  for (int64_t c = 0; c < a.Chunks; ++c) {
    if (order_key(a.chunk_tops[r * a.Chunks + c]) < key) continue;
    constexpr int kEach = kChunkIds / kSearchThreads;
    const int64_t first = c * kChunkIds + tid * kEach;
    uint32_t mine = 0, all;
    for (int j = 0; j < kEach; ++j) {
      mine += first + j < a.V && order_key(L::widen(logits[r * a.V + first + j])) == key ? 1 : 0;
    }
    const uint64_t before = seen + block_below(mine, parts, &all);
    const uint64_t goal = static_cast<uint64_t>(wanted);
    if (before < goal && before + mine >= goal) {
      uint64_t upto = before;
      for (int j = 0; j < kEach; ++j) {
        if (first + j >= a.V || order_key(L::widen(logits[r * a.V + first + j])) != key || ++upto != goal) continue;
        a.last_kept[r] = place_at(key, a.first_token + first + j);
      }
    }
    seen += all;
    if (seen >= goal) return;
    __syncthreads();  // `parts` is used again
  }
}

template <class Args>
void check_search(const Args& a) {
  if (a.Chunks == chunk_count(a.V)) return;
  throw std::invalid_argument("chunk_tops: expected " + std::to_string(chunk_count(a.V)) + " chunks of rows of " +
                              std::to_string(a.V) + ", got " + std::to_string(a.Chunks) +
                              "; pass what part_chunks wrote");
}

void part_search(const PartSearchArgs& a, cudaStream_t stream) {
  check_search(a);
  if (a.Room < 1 || a.Digits != kDigits || a.State != 3 ||
      (a.histograms_of_ranks == nullptr) != (a.shift == kFirstShift) ||
      (a.state_before == nullptr) != (a.shift == kFirstShift)) {
    throw std::invalid_argument(
        "shift, state, histogram: expected 28 without, or less with what the call before and "
        "the ranks told, 3 and 16 numbers a row; got " +
        std::to_string(a.shift) + ", " + std::to_string(a.State) + " and " + std::to_string(a.Digits) +
        "; search digit by digit from the first");
  }
  if (a.R_cap == 0) return;
  const int64_t most = (a.Chunks + kSearchWarps - 1) / kSearchWarps;
  const int64_t blocks = 6 * device_processors("part_search") / a.R_cap;  // as many as run at once
  const int64_t splits = blocks < 1 ? 1 : min64(blocks, most);
  with_float_type(a.logits_type, [&](auto type) {
    using L = decltype(type);
    launch("part_search", stream, {dim3(static_cast<unsigned>(a.R_cap * splits)), dim3(kSearchThreads)},
           part_search_kernel<L>, a, static_cast<const typename L::Bits*>(a.logits), static_cast<int>(splits));
  });
}
SPECDEC_OP(part_search, kLimits)

void part_cut(const PartCutArgs& a, cudaStream_t stream) {
  check_search(a);
  if (a.State != 3) {
    throw std::invalid_argument("state: expected 3 numbers a row, got " + std::to_string(a.State) +
                                "; pass what part_search wrote");
  }
  if (a.R_cap == 0) return;
  with_float_type(a.logits_type, [&](auto type) {
    using L = decltype(type);
    launch("part_cut", stream, {dim3(static_cast<unsigned>(a.R_cap)), dim3(kSearchThreads)}, part_cut_kernel<L>, a,
           static_cast<const typename L::Bits*>(a.logits));
  });
}
SPECDEC_OP(part_cut, kLimits)

}  // namespace specdec::cuda
