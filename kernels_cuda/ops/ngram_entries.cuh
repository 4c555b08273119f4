// Columns that one warp enters into an index that it has to itself.
#pragma once

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
  __device__ __forceinline__ bool swap(int64_t at, uint64_t old, uint64_t next) const {
    const auto expected = static_cast<unsigned long long>(old);
    return atomicCAS(entries + at, expected, static_cast<unsigned long long>(next)) == expected;
  }
  // For a warp that has the table to itself.
  __device__ __forceinline__ void store(int64_t at, uint64_t next) const { entries[at] = next; }
};

// The end of a history in shared memory.
struct StagedTokens {
  const int64_t* tokens;
  Column first;

  __device__ __forceinline__ int64_t operator[](Column i) const { return tokens[i - first]; }
};

// A warp's pending entries: a group of lanes holds neighbouring sizes of one column. find() only reads the table, so
// other warps may search concurrently. Lanes assign writes among themselves; commit() is one store per lane, and no
// other warp may write to the table. A group with equal new n-grams is `contested`: it enters its column the general
// way, after the others.
//
// Dependent loads: tokens, buckets, texts of matching entries and, for an n-gram's second occurrence, the bucket of the
// longer one at its first column.
class WarpEntries {
 public:
  static constexpr int kTokens = kWarp + kMaxNgramSize;  // that columns reach back to

  // Columns that a warp takes at a time.
  static __device__ __forceinline__ int columns(const CompactLayout& layout) {
    return static_cast<int>(kWarp) / (layout.max_size - layout.min_size + 1);
  }

  // For the columns [first, length); at most `columns`. `text` is the history, of that length; `staged`: kTokens cells
  // of shared memory.
  __device__ __forceinline__ void find(const CompactLayout& layout, CompactTable& table, const int64_t* text,
                                       Column prompt_end, Column length, Column first, int64_t* staged) {
    const StagedTokens tail = {staged, first - kMaxNgramSize};
    int64_t tokens[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const Column j = tail.first + static_cast<int>(k * kWarp + lane_id());
      tokens[k] = j >= 0 && j < length && k * kWarp + lane_id() < kTokens ? text[j] : 0;
    }
    staged[lane_id()] = tokens[0];
    if (kWarp + lane_id() < kTokens) staged[kWarp + lane_id()] = tokens[1];
    __syncwarp();
    const int sizes = layout.max_size - layout.min_size + 1;
    const int group = static_cast<int>(lane_id()) / sizes;
    const uint32_t self = 1u << lane_id(), below = self - 1;
    const uint32_t ours = ((1u << sizes) - 1) << (group * sizes % kWarp);  // of lanes without a column: means nothing
    column_ = first + group;
    size_ = layout.min_size + static_cast<int>(lane_id()) - group * sizes;
    const bool mine = group < columns(layout) && column_ < length && size_ <= column_;

    CompactFound found = {0, 0, 0};
    uint64_t label = 0;
    int common = 0;  // tokens before the entry's column that are those before this one
    if (mine) {
      const CompactKey key = compact_key(layout, tail, column_, size_);
      label = key.label;
      found = compact_find(layout, table, key, [&](Column known) {
        if (known < size_ || known >= length) return false;
        const Column most = min(layout.max_size, min(known, column_));
        common = common_tokens(most, [&](int j) { return text[known - 1 - j]; },
                               [&](int j) { return tail[column_ - 1 - j]; });
        return common >= size_;
      });
    }
    at_ = static_cast<int32_t>(found.at);
    const uint64_t old = found.entry;
    const bool known = mine && old != 0 && !layout.single(old);  // it had occurred more than once

    // The shortest n-gram with at most one earlier occurrence: longer ones have no entries and need them only while
    // they equal those of its other column, and at the first difference.
    const uint32_t unknown = __ballot_sync(kAllLanes, mine && !known) & ours;
    const int shortest = unknown != 0 ? __ffs(static_cast<int>(unknown)) - 1 : static_cast<int>(lane_id());
    const uint64_t only = __shfl_sync(kAllLanes, old, shortest);
    const int equal = __shfl_sync(kAllLanes, common, shortest);
    const Column other = layout.latest(only);
    const bool here = mine && !known && static_cast<int>(lane_id()) == shortest;
    const bool above = mine && !known && !here && only != 0 && other != column_ && size_ <= equal + 1;
    const bool parts = above && size_ == equal + 1;
    next_ = old;
    if (known || (here && only != 0)) {
      next_ = layout.merged(old, column_, size_, prompt_end);
    } else if (here || parts) {
      next_ = layout.single_entry(label, column_);
    } else if (above) {
      next_ = layout.merged(layout.single_entry(label, other), column_, size_, prompt_end);
    }
    bool contested = (here && at_ < 0) || (above && (at_ < 0 || old != 0));

    // The same entry: known ones get all columns at once.
    const uint32_t same = __match_any_sync(kAllLanes, known || (here && old != 0) ? at_ : unlike_any());
    if (known) {
      for (uint32_t others = same & ~self; others != 0; others &= others - 1) {
        next_ = layout.merged(next_, first + (__ffs(static_cast<int>(others)) - 1) / sizes, size_, prompt_end);
      }
    } else {
      contested |= here && old != 0 && same != self;
    }
    const bool adds = (here || above) && old == 0 && at_ >= 0;
    write_ = known ? next_ != old && (same & below) == 0 : adds || (here && next_ != old);

    // The same bucket: free entries are shared out.
    const uint32_t beside = __match_any_sync(kAllLanes, adds ? at_ / kCompactBucket : unlike_any());
    if (__any_sync(kAllLanes, beside != self)) {
      const uint64_t mark = adds ? label : ~uint64_t{lane_id()};  // no label has low bits
      const uint32_t twins = __match_any_sync(kAllLanes, static_cast<unsigned long long>(mark)) & beside;
      contested |= twins != self;
      if (adds) at_ = entry_of(at_, nth_bit(found.free, __popc(beside & below)), &contested);
    }

    // The longer n-gram of the other column.
    put_other_ = parts && size_ <= other;
    uint32_t other_free = 0;
    if (put_other_) {
      const CompactKey key = parting_key(layout, tail, column_, size_, text[other - size_]);
      const CompactFound theirs = compact_find(layout, table, key, [&](Column known_column) {
        return same_ngram(text, length, known_column, other, size_);
      });
      other_at_ = static_cast<int32_t>(theirs.at);
      other_next_ = layout.single_entry(key.label, other);
      other_free = theirs.free;
      contested |= theirs.at < 0 || theirs.entry != 0;
    }
    for (uint32_t putting = __ballot_sync(kAllLanes, put_other_); putting != 0; putting &= putting - 1) {
      const int lane = __ffs(static_cast<int>(putting)) - 1;
      const int32_t bucket = __shfl_sync(kAllLanes, other_at_, lane) / kCompactBucket;
      uint32_t taken = adds && at_ / kCompactBucket == bucket ? 1u << at_ % kCompactBucket : 0;
      const bool before = put_other_ && static_cast<int>(lane_id()) < lane;
      if (before && other_at_ / kCompactBucket == bucket) taken |= 1u << other_at_ % kCompactBucket;
      taken = __reduce_or_sync(kAllLanes, taken);
      if (static_cast<int>(lane_id()) == lane) other_at_ = entry_of(other_at_, other_free & ~taken, &contested);
    }

    general_ = false;
    if ((__ballot_sync(kAllLanes, contested) & ours) != 0 && mine && !known) {
      write_ = put_other_ = false;
      general_ = here;
    }
  }

  // False if the index is overflowed.
  __device__ __forceinline__ bool commit(const CompactLayout& layout, CompactTable& table, const int64_t* text,
                                         Column prompt_end, Column length) {
    if (write_) table.store(at_, next_);
    if (put_other_) table.store(other_at_, other_next_);
    // Lanes that go on see what the others have stored.
    if (!__any_sync(kAllLanes, general_)) return true;
    __syncwarp();
    return !general_ || compact_insert(layout, table, text, prompt_end, length, column_, size_);
  }

 private:
  // What no other lane has, as number of an entry or a bucket.
  static __device__ __forceinline__ int32_t unlike_any() { return -1 - static_cast<int32_t>(lane_id()); }

  // `bits` without the lowest n.
  static __device__ __forceinline__ uint32_t nth_bit(uint32_t bits, int n) {
    for (; n > 0; --n) bits &= bits - 1;
    return bits;
  }
  // The lowest free entry of the bucket in which `at` lies.
  static __device__ __forceinline__ int32_t entry_of(int32_t at, uint32_t free, bool* none) {
    *none |= free == 0;
    return free == 0 ? at : at / kCompactBucket * kCompactBucket + __ffs(static_cast<int>(free)) - 1;
  }

  // The key of the n-gram that differs in its first token alone from the n-gram before a column.
  static __device__ __forceinline__ CompactKey parting_key(const CompactLayout& layout, const StagedTokens& tail,
                                                           Column after, int size, int64_t token) {
    CompactHash hash;
    hash.take_all(size - 1, [&](int j) { return tail[after - 1 - j]; });
    hash.take(token);
    return CompactKey(layout, hash.of_size(size), size);
  }

  Column column_;
  int size_;
  int32_t at_, other_at_;  // entry numbers
  uint64_t next_, other_next_;
  bool write_, put_other_;
  bool general_;  // this lane enters the contested group's column
};

}  // namespace specdec::cuda
