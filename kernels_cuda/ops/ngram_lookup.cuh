// The search of ngram_match with an index: one warp per slot. It looks up the last tokens at all sizes at once, and
// compares them with columns not yet in the index: recently accepted tokens, which the next launch enters, and MTP
// drafts.
#pragma once

#include "ngram_index.cuh"

namespace specdec::cuda {

constexpr int kLookupWarps = 4;
constexpr int64_t kTailColumns = 2 * kWarp;  // columns that may be missing in the index
constexpr int64_t kTailTokens = kTailColumns + kWarp;

// Whether the index misses no more than a tail of what ends at `stop`. Else the slot's history is searched.
__device__ __forceinline__ bool index_serves(const CompactHeader& header, const ProposeSlot& slot, int64_t stop) {
  return header.overflowed == 0 && index_is_of(header, slot.at.prompt_end, slot.at.end) &&
         stop - first_unseen(header) <= kTailColumns;
}

struct LookupShared {
  int64_t suffix[kMaxNgramSize];  // as in NgramQuery
  int64_t tail[kTailTokens];      // the end of the text
};

struct SharedQuery : NgramSizes {
  const int64_t* suffix;
};

// One warp: the best match among those at which each lane looks, in the whole text. For an index that cannot be used.
__device__ __forceinline__ uint32_t search_by_warp(const ProposeSlot& slot, const NgramSizes& query) {
  const SlotText text = slot.text();
  uint32_t best = 0;
  for (int64_t after = 1 + lane_id(); after < slot.at.text_end; after += kWarp) {
    const int size = ngram_size_in(query, text, after);
    if (size < query.least) continue;
    const uint32_t rank = ngram_rank(query.policy, {size, after});
    best = rank > best ? rank : best;
  }
  return best;
}

// One warp, lane i for the i-th size: the index's match as a rank. The continuation of the longest likely n-gram is
// read ahead.
struct Followers {
  Column after = 0;
  int64_t token = 0;  // lane i has text[after + i]
};

__device__ __forceinline__ uint32_t look_up(const CompactLayout& layout, const CompactTable& table,
                                            const SlotText& text, const SharedQuery& query, const CompactKey& key,
                                            uint64_t (&words)[kCompactBucket], int64_t wanted, Followers* followers) {
  const int size = query.least + static_cast<int>(lane_id());
  const bool tried = size <= query.most;
  const CompactBits bits(layout, words, key.label);
  const uint32_t seen = __ballot_sync(kAllLanes, tried && bits.alike != 0);
  if (seen != 0) {
    const uint64_t entry = CompactBits::pick(words, __ffs(static_cast<int>(bits.alike)) - 1);
    const unsigned longest = 31 - __clz(static_cast<int>(seen));
    followers->after = Team<kWarp>::get(compact_column(layout, entry, query.policy), longest);
    const int64_t i = followers->after + lane_id();
    if (lane_id() < wanted && i < query.text_end) followers->token = text[i];
  }
  if (!tried) return 0;
  const auto length = static_cast<Column>(text.end);
  return ngram_rank(query.policy, compact_look_up(layout, table, text.history, query, length, size, key, words, bits));
}

template <bool kHybrid>
__global__ __launch_bounds__(kLookupWarps* kWarp, 1) void ngram_lookup_kernel(NgramMatchArgs a, CompactLayout layout) {
  wait_for_previous();
  let_next_start();
  __shared__ LookupShared shared_of[kLookupWarps];
  LookupShared& shared = shared_of[warp_id()];
  const int64_t b = int64_t{blockIdx.x} * kLookupWarps + warp_id();
  if (b >= a.B) return;
  CompactHeader* stored = index_header(a.index, a.X, b);
  const CompactHeader header = read_header(stored);
  ProposeSlot slot;
  const bool decoding = slot.load<kHybrid>(a, b);
  if (!decoding) return;
  const SlotText text = slot.text();
  const int64_t tail = max64(slot.at.text_end - kTailTokens, 0);
  int64_t tokens[kTailTokens / kWarp];
#pragma unroll
  for (int i = 0; i < kTailTokens / static_cast<int>(kWarp); ++i) {
    const int64_t j = tail + i * kWarp + lane_id();
    tokens[i] = j < slot.at.text_end ? text[j] : 0;
  }
#pragma unroll
  for (int i = 0; i < kTailTokens / static_cast<int>(kWarp); ++i) {
    const int64_t j = i * kWarp + lane_id(), back = slot.at.text_end - 1 - tail - j;
    shared.tail[j] = tokens[i];
    if (back >= 0 && back < kMaxNgramSize) shared.suffix[back] = tokens[i];
  }
  __syncwarp();
  const SharedQuery query = {slot.sizes(a), shared.suffix};
  // Prefetched speculatively: every bucket of the row is readable.
  const CompactTable table = index_table(stored);
  const int size = min(query.least + static_cast<int>(lane_id()), query.most);
  const CompactKey key = compact_query_key(layout, query, size);
  uint64_t words[kCompactBucket];
  table.load(key.bucket, words);
  uint32_t best = 0;
  Followers followers;
  if (query.possible()) {
    if (index_serves(header, slot, slot.at.text_end)) {
      for (int64_t after = first_unseen(header) + lane_id(); after < slot.at.text_end; after += kWarp) {
        const int common = ngram_size_at(query, shared.tail, tail, after);
        if (common < query.least) continue;
        const uint32_t rank = ngram_rank(query.policy, {common, after});
        best = rank > best ? rank : best;
      }
      best = max(best, look_up(layout, table, text, query, key, words, slot.wanted, &followers));
    } else {
      best = search_by_warp(slot, query);
    }
    best = warp_max(best);
  }
  const NgramMatch match = ngram_ranked(query.policy, best);
  const int64_t count = ngram_draft_count(query, match, slot.wanted, a.continue_cycles);
  const unsigned i = ProposeSlot::draft_source(query, match, count);
  int64_t token = Team<kWarp>::get(followers.token, i);
  if (lane_id() < count) {
    if (match.after != followers.after) token = text[match.after + i];
    slot.drafts[slot.base + lane_id()] = token;
  }
  if (lane_id() == 0) a.seq_lens_this_time[b] = pack_proposal(slot.base, count);
}

// One warp, in the launch after the look-up: enter the columns of slot b that the index has not seen.
//
// Reads and writes do not race. Positions of the first columns are found while the look-up's warp reads the same header
// and table and neither writes; that warp has waited for earlier launches. Stores follow `wait_for_previous`, after the
// look-up; later readers wait for this launch. Other lanes' stores are read after __syncwarp(), from L2.
__device__ __forceinline__ void grow_index(const NgramMatchArgs& a, const CompactLayout& layout, int64_t b,
                                           int64_t* staged) {
  CompactHeader* stored = index_header(a.index, a.X, b);
  const CompactHeader header = read_header(stored);
  // What it has got besides its history, the look-up is changing.
  ProposeSlot slot;
  const bool decoding = slot.load<false>(a, b);
  CompactTable table = index_table(stored);
  const Column prompt_end = static_cast<Column>(slot.at.prompt_end), length = static_cast<Column>(slot.at.end);
  const bool wanted = decoding && index_serves(header, slot, slot.at.end) && header.seen != slot.at.end;
  bool entered = true, waited = false;
  for (Column first = static_cast<Column>(first_unseen(header)); wanted && first < length;
       first += WarpEntries::columns(layout)) {
    WarpEntries entries;
    entries.find(layout, table, slot.at.row, prompt_end, length, first, staged);
    if (!waited) {
      wait_for_previous();
      let_next_start();
      waited = true;
    }
    entered &= entries.commit(layout, table, slot.at.row, prompt_end, length);
    __syncwarp();
  }
  if (!waited) {
    wait_for_previous();
    let_next_start();
  }
  entered = __all_sync(kAllLanes, entered);
  if (wanted && lane_id() == 0) {
    stored->seen = static_cast<int32_t>(slot.at.end);
    stored->prompt_end = static_cast<int32_t>(slot.at.prompt_end);
    stored->overflowed = entered ? 0 : 1;
  }
}

}  // namespace specdec::cuda
