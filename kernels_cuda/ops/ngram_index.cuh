// The n-gram index on the device: reading, growing and clearing the rows of specdec/ngram_compact.h.
#pragma once

#include "cluster.cuh"
#include "ngram_slot.cuh"
#include "specdec/ngram_compact.h"

namespace specdec::cuda {

struct CompactTable {
  unsigned long long* entries;

  // From L2, where other threads' changes are.
  __device__ __forceinline__ void load(uint32_t bucket, uint64_t (&words)[kCompactBucket]) const {
    const auto* from = reinterpret_cast<const ulonglong2*>(entries + int64_t{bucket} * kCompactBucket);
    ulonglong2 pairs[kCompactBucket / 2];
#pragma unroll
    for (int i = 0; i < kCompactBucket / 2; ++i) pairs[i] = __ldcg(from + i);
#pragma unroll
    for (int i = 0; i < kCompactBucket / 2; ++i) {
      words[2 * i] = pairs[i].x;
      words[2 * i + 1] = pairs[i].y;
    }
  }
  // What was there.
  __device__ __forceinline__ uint64_t exchange(int64_t at, uint64_t old, uint64_t next) const {
    return atomicCAS(entries + at, static_cast<unsigned long long>(old), static_cast<unsigned long long>(next));
  }
  __device__ __forceinline__ bool swap(int64_t at, uint64_t old, uint64_t next) const {
    return exchange(at, old, next) == old;
  }
};

__device__ __forceinline__ CompactHeader* index_header(uint8_t* index, int64_t row_bytes, int64_t b) {
  return reinterpret_cast<CompactHeader*>(index + b * row_bytes);
}
__device__ __forceinline__ CompactTable index_table(CompactHeader* header) {
  return {reinterpret_cast<unsigned long long*>(header + 1)};
}

// Whether the index is of this history, as far as its header tells.
__device__ __forceinline__ bool index_is_of(const CompactHeader& header, int64_t prompt_end, int64_t end) {
  return header.seen >= 0 && header.seen <= end && (header.seen == 0 || header.prompt_end == prompt_end);
}

// First place that is not in the index.
__device__ __forceinline__ int64_t first_unseen(const CompactHeader& header) { return max64(header.seen, 1); }

// What a warp is about to enter: lanes hold neighbouring sizes of the same place. To find where reads the table only,
// so that other warps may look things up meanwhile; to commit is one exchange in each lane, as a rule.
class WarpEntries {
 public:
  // Places that a warp takes at a time.
  static __device__ __forceinline__ int places(const CompactLayout& layout) {
    return static_cast<int>(kWarp) / (layout.max_size - layout.min_size + 1);
  }

  // For the places [first, length); at most `places`. `text` is the history, of that length.
  __device__ __forceinline__ void find(const CompactLayout& layout, CompactTable& table, const int64_t* text,
                                       Place prompt_end, Place length, Place first) {
    const int sizes = layout.max_size - layout.min_size + 1;
    const int group = static_cast<int>(lane_id()) / sizes;
    place_ = first + group;
    size_ = layout.min_size + static_cast<int>(lane_id()) - group * sizes;
    const bool mine = group < places(layout) && place_ < length && size_ <= place_;
    CompactFound found = {0, 0, 0};
    if (mine) found = compact_find(layout, table, text, length, place_, size_);
    at_ = found.at;
    old_ = next_ = found.entry;
    known_ = mine && found.entry != 0 && !layout.single(found.entry);
    insert_ = insert_other_ = put_other_ = false;
    // The shortest n-gram that had not occurred, or once: longer ones have no entries, and need one only as far as they
    // are those of its only other place, and where they part from these.
    const uint32_t unknown = __ballot_sync(kAllLanes, mine && !known_) & (mine ? kAllLanes << group * sizes : 0);
    const int shortest = unknown != 0 ? __ffs(static_cast<int>(unknown)) - 1 : 0;
    const bool here = static_cast<int>(lane_id()) == shortest;
    const uint64_t only = __shfl_sync(kAllLanes, found.entry, shortest);
    if (!mine || at_ < 0) return;
    if (known_ || (here && only != 0)) {
      next_ = layout.merged(old_, place_, size_, prompt_end);
    } else if (here) {
      next_ = layout.single_entry(found.label, place_);
    }
    other_ = layout.latest(only);
    if (known_ || here || only == 0 || other_ == place_) return;
    int common = 0;
    while (common < size_ && common < other_ && text[other_ - 1 - common] == text[place_ - 1 - common]) ++common;
    if (common < size_ - 1) return;
    if (old_ != 0) {
      insert_ = insert_other_ = true;
    } else if (common == size_) {
      next_ = layout.merged(layout.single_entry(found.label, other_), place_, size_, prompt_end);
    } else {
      next_ = layout.single_entry(found.label, place_);
      if (size_ > other_) return;
      const CompactFound theirs = compact_find(layout, table, text, length, other_, size_);
      put_other_ = theirs.at >= 0 && theirs.entry == 0;
      insert_other_ = !put_other_;
      other_at_ = theirs.at;
      other_next_ = layout.single_entry(theirs.label, other_);
    }
  }

  // False if the index is spoilt.
  __device__ __forceinline__ bool commit(const CompactLayout& layout, CompactTable& table, const int64_t* text,
                                         Place prompt_end, Place length) {
    if (at_ < 0) return false;
    // Both on their way before either is waited for, and the same instruction in all lanes.
    const bool changes = next_ != old_;
    uint64_t there = old_, there_other = 0;
    if (changes) there = table.exchange(at_, old_, next_);
    if (put_other_) there_other = table.exchange(other_at_, 0, other_next_);
    // Other lanes were quicker: with another place of the n-gram, or with another n-gram.
    while (known_ && there != old_ && next_ != old_) {
      old_ = there;
      next_ = layout.merged(old_, place_, size_, prompt_end);
      if (next_ != old_) there = table.exchange(at_, old_, next_);
    }
    if (!known_ && there != old_ && !(old_ == 0 && put_behind(layout, table, at_, there, next_))) {
      insert_ = true;
      insert_other_ |= !layout.single(next_);
    }
    if (there_other != 0 && !put_behind(layout, table, other_at_, there_other, other_next_)) insert_other_ = true;
    bool entered = true;
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      if (i == 0 ? !insert_ : !insert_other_) continue;
      entered &= compact_insert(layout, table, text, prompt_end, length, i == 0 ? place_ : other_, size_);
    }
    return entered;
  }

 private:
  // Stores an entry in its bucket behind what another lane has put `there`; false if that is of its label, or there is
  // no room.
  static __device__ __forceinline__ bool put_behind(const CompactLayout& layout, CompactTable& table, int64_t at,
                                                    uint64_t there, uint64_t entry) {
    while (!layout.alike(there, entry) && ++at % kCompactBucket != 0) {
      there = table.exchange(at, 0, entry);
      if (there == 0) return true;
    }
    return false;
  }

  Place place_, other_;  // other: the only other place of an n-gram
  int size_;
  int64_t at_, other_at_;
  uint64_t old_, next_, other_next_;
  bool known_;  // it had occurred more than once
  bool put_other_;
  bool insert_, insert_other_;  // in the general way
};

// ngram_index_update: a block, or a cluster of them, a slot. Many places are entered in an order that is spread over
// the text (multiples of the golden section), so that an entry's first and latest places soon hold and are hardly
// changed after.
constexpr int kUpdateThreads = 512;
constexpr int64_t kFewPlaces = 64;

// One warp: all places from `start` on.
__device__ __forceinline__ bool enter_few(const CompactLayout& layout, CompactTable& table, const int64_t* text,
                                          Place prompt_end, Place length, Place start) {
  bool entered = true;
  const int step = WarpEntries::places(layout);
  for (Place first = start; first < length; first += step) {
    WarpEntries entries;
    entries.find(layout, table, text, prompt_end, length, first);
    __syncwarp();
    entered &= entries.commit(layout, table, text, prompt_end, length);
    __syncwarp();
  }
  return entered;
}

__global__ __launch_bounds__(kUpdateThreads, 1) void ngram_index_update_kernel(IndexUpdateArgs a,
                                                                               CompactLayout layout) {
  wait_for_previous();
  let_next_start();
  __shared__ uint32_t spoilt;  // of the cluster's first block
  const unsigned rank = Cluster::rank(), ranks = Cluster::size();
  const uint32_t thread = rank * blockDim.x + threadIdx.x, threads = ranks * blockDim.x;
  const int64_t b = blockIdx.x / ranks;
  const int32_t enc = a.seq_lens_encoder[b], dec = a.seq_lens_decoder[b];
  const History history = history_bounds(a.row_width, a.prompt_lens[b], a.step_idx[b]);
  CompactHeader* place = index_header(a.index, a.index_bytes, b);
  CompactHeader header = *place;
  // The same in all blocks of the cluster.
  if (enc > 0 || dec <= 0) return;
  CompactTable table = index_table(place);
  // A history that shrank, or got another prompt, without a reset.
  if (!index_is_of(header, history.prompt_end, history.end)) {
    header.seen = header.spoilt = 0;
    for (int64_t i = thread; i < int64_t{layout.buckets} * kCompactBucket; i += threads) table.entries[i] = 0;
  }
  if (threadIdx.x == 0) spoilt = header.spoilt != 0;
  Cluster::sync();  // all have read the header, and the table is clear
  const int64_t* text = a.token_ids_all + b * a.row_width;
  const Place prompt_end = static_cast<Place>(history.prompt_end), length = static_cast<Place>(history.end);
  const Place start = static_cast<Place>(first_unseen(header)), count = length - start;
  bool entered = true;
  if (header.spoilt == 0 && count <= kFewPlaces) {
    if (thread < kWarp) entered = enter_few(layout, table, text, prompt_end, length, start);
  } else if (header.spoilt == 0) {
    const int bits = 32 - __clz(count - 1);
    const uint32_t mask = (1u << bits) - 1, step = 0x9E3779B9u >> (32 - bits) | 1;
    for (uint32_t i = thread; i <= mask && entered; i += threads) {
      const Place next = start + static_cast<Place>(i * step & mask);
      if (next < length) entered = compact_insert(layout, table, text, prompt_end, length, next, a.min_size);
    }
  }
  if (!entered) atomicOr(Cluster::of(&spoilt, 0), 1u);
  Cluster::sync();
  if (thread == 0) {
    place->seen = static_cast<int32_t>(history.end);
    place->prompt_end = static_cast<int32_t>(history.prompt_end);
    place->spoilt = static_cast<int32_t>(spoilt);
  }
}

// ngram_index_reset: every block clears its part of every row.
constexpr int kResetThreads = 256;

__global__ __launch_bounds__(kResetThreads, 1) void ngram_index_reset_kernel(IndexResetArgs a) {
  wait_for_previous();
  let_next_start();
  const int64_t vectors = a.index_bytes / static_cast<int64_t>(sizeof(uint4));
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x, threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t group = 0; group < a.slots; group += kWarp) {
    const int64_t b = group + lane_id();
    uint32_t wanted = __ballot_sync(kAllLanes, b < a.slots && a.reset_slots[b]);
    while (wanted != 0) {
      auto* row = reinterpret_cast<uint4*>(a.index + (group + __ffs(static_cast<int>(wanted)) - 1) * a.index_bytes);
      wanted &= wanted - 1;
      for (int64_t i = thread; i < vectors; i += threads) row[i] = make_uint4(0, 0, 0, 0);
    }
  }
}

}  // namespace specdec::cuda
