// A row that a cluster shares: its cores, the ranks, own consecutive chunks, copy them to local memory, one at a time,
// and publish results in SM. They exchange only keys, counts and integer masses, so the result does not depend on their
// number. All call the same functions in the same order and, unless stated otherwise, get the same result.
#pragma once

#include "row_loops.h"
#include "specdec/contract.h"
#include "specdec/integers.h"
#include "xpu/kernel/cluster.h"
#include "xpu/kernel/cluster_primitive.h"

namespace specdec {

constexpr int kMaxChunks = static_cast<int>(served::kV >> kChunkBits);  // of a row that a team takes
constexpr int kListed = 64;  // elements of the short list
constexpr int kRoom = 2 * kListed;  // it has room for, since a guess at its length may be wrong

// The first chunk of a rank; that of rank `ranks` is after the last.
SPECDEC_HD int first_chunk(int64_t size, int rank, int ranks) {
  const int chunks = static_cast<int>(chunk_count(size)), share = chunks / ranks, more = chunks % ranks;
  return share * rank + (rank < more ? rank : more);
}

// What the cores publish, one in SM for all rows of a kernel.
struct RowShared {
  static constexpr int kRanks = 64;  // cores of a cluster

  ChunkSum chunk[kMaxChunks];  // each is its owner's alone
  float lane[kRanks][kLanes];  // see chunk_top

  // Histograms of each rank, and their sums.
  uint32_t count[kRanks][kBuckets];
  uint64_t mass[kRanks][kBuckets];
  uint64_t sum_count[kBuckets], sum_mass[kBuckets];

  // The short list, by ascending id, and the first of it in the row's order.
  int32_t list_key[kRoom];
  float list_value[kRoom];
  int64_t list_id[kRoom];
  uint64_t list_mass[kListed];
  float sorted_value[kListed];
  int64_t sorted_id[kListed];
  int32_t floor;  // see list_first
  Threshold threshold;  // and list_threshold
  uint64_t kept;

  // One value of each rank; two sets in turns, so that one sync a reduction is enough.
  int32_t rank_key[2][kRanks];
  uint64_t rank_mass[2][kRanks];
  uint64_t rank_count[2][kRanks];
  float chosen[2];
};

struct ClusterTeam {
  __device__ int rank() const { return core_id(); }
  __device__ int size() const { return core_num(); }
  __device__ bool leads() const { return core_id() == 0; }
  __device__ void sync() {
    mfence_sm();
    sync_cluster();
  }
};

// This core's chunks of a row. A single one is fetched once.
template <class L>
class GmRow {
 public:
  using Bits = typename L::Bits;

  __device__ GmRow(const Bits* gm, int64_t size)
      : gm_(gm),
        size_(size),
        begin_(first_chunk(size, core_id(), core_num())),
        end_(first_chunk(size, core_id() + 1, core_num())),
        held_(-1) {}

  __device__ int64_t size() const { return size_; }
  __device__ int begin() const { return begin_; }
  __device__ int end() const { return end_; }
  // This core's elements in its chunks, and the first of them.
  __device__ int64_t first() const { return min64(int64_t{begin_} << kChunkBits, size_); }
  __device__ int64_t count() const { return min64(int64_t{end_} << kChunkBits, size_) - first(); }

  __device__ const Bits* load(int c, int* count) {
    const int64_t at = int64_t{c} << kChunkBits, left = min64(kChunkIds, size_ - at);
    if (c != held_) GM2LM(gm_ + at, tile_, left * static_cast<int64_t>(sizeof(Bits)));
    held_ = c;
    *count = static_cast<int>(left);
    return tile_;
  }

 private:
  const Bits* gm_;
  int64_t size_;
  int begin_, end_, held_;
  __simd__ Bits tile_[kChunkIds];
};

// body(x, count, first id, sum) for the chunks of this rank whose largest logit is at least `least`, until it returns
// false.
template <class L, class Body>
SPECDEC_HD void each_chunk(GmRow<L>& row, const RowShared& s, float least, Body body) {
  for (int c = row.begin(); c < row.end(); ++c) {
    if (!(s.chunk[c].top >= least)) continue;
    int count;
    const auto* x = row.load(c, &count);
    if (!body(x, count, int64_t{c} << kChunkBits, s.chunk[c])) return;
  }
}

// The largest key of a row, the first rank that has it, and how many of this rank's elements are `least` or more.
struct RowTop {
  int32_t key;
  int rank;
  uint64_t own_count;

  SPECDEC_HD float value() const { return key_value(key); }
};

// The one read: the largest logit and, for 1/temperature >= 0, the mass of each chunk (s.chunk), and this rank's
// largest elements by lanes (s.lane). Without `least` (NaN) none are counted.
template <class L>
SPECDEC_APART RowTop read_row(ClusterTeam& team, GmRow<L>& row, RowShared& s, int turn, float inv_temperature,
                              float least = __builtin_nanf("")) {
  const int rank = team.rank(), ranks = team.size();
  float lanes[kLanes];
  for (int j = 0; j < kLanes; ++j) lanes[j] = -detail::kFloatInf;
  int32_t own = -kKeyInf;
  uint64_t own_count = 0;
  for (int c = row.begin(); c < row.end(); ++c) {
    int count;
    const auto* x = row.load(c, &count);
    const int32_t key = chunk_top<L>(x, count, lanes);
    if (key > own) own = key;
    if (own == kKeyNan) break;
    const Softmax softmax{key_value(key), inv_temperature};
    s.chunk[c].top = softmax.row_max;
    s.chunk[c].mass = inv_temperature >= 0.0f ? chunk_mass<L>(x, count, softmax, 0) : 0;
    if (softmax.row_max >= least) own_count += static_cast<uint64_t>(count_at_least<L>(x, count, least));
  }
  for (int j = 0; j < kLanes; ++j) s.lane[rank][j] = lanes[j];
  s.rank_key[turn][rank] = own;
  team.sync();
  RowTop top{s.rank_key[turn][0], 0, own_count};
  for (int r = 1; r < ranks; ++r) {
    if (s.rank_key[turn][r] > top.key) top = {s.rank_key[turn][r], r, own_count};
  }
  return top;
}

constexpr float kNoMasses = -1.0f;  // for 1/temperature

// This rank's part of the total by chunks.
template <class L>
SPECDEC_HD uint64_t own_shares(GmRow<L>& row, const RowShared& s, const Softmax& softmax) {
  uint64_t own = 0;
  for (int c = row.begin(); c < row.end(); ++c) own += chunk_share(softmax, s.chunk[c]);
  return own;
}

// A number of each rank, summed up: over the ranks before this one, and over all.
struct RankSums {
  uint64_t before, own, total;

  SPECDEC_HD bool has(uint64_t point) const { return point >= before && point - before < own; }
};

// From s.rank_mass or s.rank_count, in every rank's sight.
SPECDEC_HD RankSums sum_ranks(ClusterTeam& team, const uint64_t* of_rank) {
  const int rank = team.rank(), ranks = team.size();
  RankSums sums{0, of_rank[rank], 0};
  for (int r = 0; r < ranks; ++r) {
    if (r == rank) sums.before = sums.total;
    sums.total += of_rank[r];
  }
  return sums;
}

SPECDEC_HD RankSums share_mass(ClusterTeam& team, RowShared& s, int turn, uint64_t own) {
  s.rank_mass[turn][team.rank()] = own;
  team.sync();
  return sum_ranks(team, s.rank_mass[turn]);
}

}  // namespace specdec
