// A row that a team shares: ranks (cores of a cluster, threads of a block, 1 on a host) that own consecutive chunks.
// Ranks exchange only keys, counts and integer masses, so the result does not depend on their number. Parameters of the
// functions of rows:
//   Team    rank(), size(); sync(): what all ranks stored in Shared before is seen by all ranks after.
//   Row     size(); begin(), end(): the rank's chunks; load(c, &count): the elements of one of them. kInMemory: a load
//           is free, so that few elements of a chunk can be looked at.
//   Shared  a RowShared<most ranks, sets of lanes a rank>, one per team.
// All ranks call the same functions in the same order and, unless stated otherwise, get the same result.
#pragma once

#include "specdec/contract.h"
#include "specdec/rows/row_loops.h"

namespace specdec {

constexpr int kMaxChunks = static_cast<int>(served::kV >> kChunkBits);  // of a row that a team takes
constexpr int kListed = 64;  // elements of the short list
constexpr int kRoom = 2 * kListed;  // it has room for, since a guess at its length may be wrong

// The first chunk of a rank; that of rank `ranks` is after the last.
SPECDEC_HD int first_chunk(int64_t size, int rank, int ranks) {
  const int chunks = static_cast<int>(chunk_count(size)), share = chunks / ranks, more = chunks % ranks;
  return share * rank + (rank < more ? rank : more);
}

template <int Ranks, int Sets = 1>
struct RowShared {
  static constexpr int kRanks = Ranks, kSets = Sets;

  ChunkSum chunk[kMaxChunks];  // each is its owner's alone
  float lane[Ranks * Sets][kLanes];  // see chunk_top; chunks take sets in turns

  // Histograms of each rank, and their sums.
  uint32_t count[Ranks][kBuckets];
  uint64_t mass[Ranks][kBuckets];
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
  int32_t rank_key[2][Ranks];
  uint64_t rank_mass[2][Ranks];
  uint64_t rank_count[2][Ranks];
  float chosen[2];
};

// body(x, count, first id, sum) for the chunks of this rank whose largest logit is at least `least`, until it returns
// false.
template <class Row, class Shared, class Body>
SPECDEC_HD void each_chunk(Row& row, const Shared& s, float least, Body body) {
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
template <class L, class Team, class Row, class Shared>
SPECDEC_APART RowTop read_row(Team& team, Row& row, Shared& s, int turn, float inv_temperature,
                              float least = __builtin_nanf("")) {
  const int rank = team.rank(), ranks = team.size();
  constexpr int kSets = Shared::kSets;
  float lanes[kSets][kLanes];
  for (int k = 0; k < kSets; ++k) {
    for (int j = 0; j < kLanes; ++j) lanes[k][j] = -detail::kFloatInf;
  }
  int32_t own = -kKeyInf;
  uint64_t own_count = 0;
  for (int c = row.begin(); c < row.end(); ++c) {
    int count;
    const auto* x = row.load(c, &count);
    const int32_t key = chunk_top<L>(x, count, lanes[c % kSets]);
    if (key > own) own = key;
    if (own == kKeyNan) break;
    const Softmax softmax{key_value(key), inv_temperature};
    s.chunk[c].top = softmax.row_max;
    s.chunk[c].mass = inv_temperature >= 0.0f ? chunk_mass<L>(x, count, softmax, 0) : 0;
    if (softmax.row_max >= least) own_count += static_cast<uint64_t>(count_at_least<L>(x, count, least));
  }
  for (int k = 0; k < kSets; ++k) {
    for (int j = 0; j < kLanes; ++j) s.lane[rank * kSets + k][j] = lanes[k][j];
  }
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
template <class Row, class Shared>
SPECDEC_HD uint64_t own_shares(Row& row, const Shared& s, const Softmax& softmax) {
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
template <class Team>
SPECDEC_HD RankSums sum_ranks(Team& team, const uint64_t* of_rank) {
  const int rank = team.rank(), ranks = team.size();
  RankSums sums{0, of_rank[rank], 0};
  for (int r = 0; r < ranks; ++r) {
    if (r == rank) sums.before = sums.total;
    sums.total += of_rank[r];
  }
  return sums;
}

template <class Team, class Shared>
SPECDEC_HD RankSums share_mass(Team& team, Shared& s, int turn, uint64_t own) {
  s.rank_mass[turn][team.rank()] = own;
  team.sync();
  return sum_ranks(team, s.rank_mass[turn]);
}

}  // namespace specdec
