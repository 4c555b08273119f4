// The first elements of a row, in order: candidates of top_p_candidates, top log-probabilities.
#pragma once

#include "specdec/log2.h"
#include "specdec/row_sample.h"

namespace specdec {

struct NoMass {
  SPECDEC_HD uint64_t operator()(float) const { return 0; }
};

// Puts the `want` (1 .. kListed, and not more than there are) first elements behind `from` into s.sorted_value and
// s.sorted_id, in order and in every rank's sight; returns the last of them. `grid` is a guess at where they are.
template <class L, class Team, class Row, class Shared>
SPECDEC_HD Cut list_first(Team& team, Row& row, Shared& s, Cut from, int want, KeyGrid grid) {
  const KeyRange everything{-kKeyInf, kKeyInf};
  const int rank = team.rank();
  range_histogram<L>(team, row, s, 1, everything, grid, from, NoMass{}, true);
  if (rank == 0) {
    Search& search = s.search;
    search.goal = Goal::kCount;
    search.need = static_cast<uint64_t>(want);
    search.above = {0, 0};
    search.range = everything.cell(grid, find_bucket(s, 1, search));
    plan_search(search, kListed - search.above.count);
  }
  team.sync();
  narrow<L>(team, row, s, from, NoMass{}, true);

  // Everything above the range is listed, and either all of the range or as many of its equal elements as are missing.
  const Search& search = s.search;
  const int bucket = search.bucket;
  uint32_t own_above = s.above[rank];
  for (int b = 0; b < bucket; ++b) own_above += s.count[1][rank][b];
  s.above[rank] = own_above;
  team.sync();
  uint64_t above = 0, inside = 0;
  for (int r = 0; r < rank; ++r) {
    above += s.above[r];
    inside += s.count[1][r][bucket];
  }
  const uint64_t quota = search.next == Search::kList ? search.inside.count : search.need - search.above.count;
  const uint64_t before = inside < quota ? inside : quota;
  if (own_above > 0 || (s.count[1][rank][bucket] > 0 && before < quota)) {
    const int64_t ties = search.next == Search::kList ? kListed : static_cast<int64_t>(quota - before);
    ListVisitor<L, NoMass, Shared> v{s,        {search.range.low, kKeyInf}, from, NoMass{},
                                     static_cast<int64_t>(above + before), ties};
    row.visit(v);
  }
  if (rank == 0) s.list_size = static_cast<int>(search.above.count + quota);
  team.sync();
  for (int i = rank; i < s.list_size; i += team.size()) {
    const int place = static_cast<int>(list_weight(s, i).count) - 1;
    if (place < want) {
      s.sorted_value[place] = s.list_value[i];
      s.sorted_id[place] = s.list_id[i];
    }
  }
  team.sync();
  return {order_key(s.sorted_value[want - 1]), s.sorted_id[want - 1]};
}

// The `count` largest probabilities of a row. Rank 0 calls sink.block(at, values, ids, n) for one stretch after another
// and at the end sink.reached(lens).
template <class Team, class Row, class Shared, class Sink>
SPECDEC_HD void row_candidates(Team& team, Row& row, Shared& s, int64_t count, float top_p, Sink& sink) {
  const uint64_t wanted = prob_mass(top_p);
  constexpr KeyGrid kProbabilities{0x3FFFFFFF, 21};  // four buckets an octave, from 2 down to 2^-31
  uint64_t running = 0;
  int64_t reached = 0;
  Cut cut = keep_none();
  for (int64_t at = 0; at < count;) {
    const int n = static_cast<int>(min64(count - at, kListed));
    const KeyGrid grid{cut.key < kProbabilities.top ? cut.key : kProbabilities.top, kProbabilities.shift};
    cut = list_first<Probability>(team, row, s, cut, n, grid);
    if (team.rank() == 0) {
      for (int i = 0; i < n && reached == 0; ++i) {
        running += prob_mass(s.sorted_value[i]);
        if (running >= wanted) reached = at + i + 1;
      }
      sink.block(at, s.sorted_value, s.sorted_id, n);
    }
    at += n;
  }
  if (team.rank() == 0) sink.reached(reached > 0 ? reached : count);
}

// Log-probabilities of one row at temperature 1.
struct RowLogprobs {
  float row_max, ln_total;

  SPECDEC_HD float of(float logit) const {
    const float below = logit == row_max ? 0.0f : sub_rn(logit, row_max);
    const float logprob = sub_rn(below, ln_total);
    return logprob < -FLT_MAX ? -FLT_MAX : logprob;
  }
};

template <class L>
struct TotalRankVisitor {
  Softmax softmax;
  int32_t key;
  uint64_t total, rank;

  SPECDEC_HD bool tile(const typename L::Bits* x, int64_t, int count) {
    SoftmaxChunk chunk;
    for (int i = 0; i < count; i += kChunk) {
      const int n = chunk.load<L>(softmax, x + i, count - i);
      for (int j = 0; j < n; ++j) {
        total += chunk.mass[j];
        rank += order_key(chunk.logit[j]) >= key ? 1 : 0;
      }
    }
    return true;
  }
};

// The chosen token's log-probability and rank, and the first `top` of the row. Rank 0 calls sink.undefined() if the row
// has no distribution; else sink.chosen(logprob, rank) and sink.block(at, ids, logprobs, n). `chosen` is the token's
// logit, needed on rank 0 only.
template <class L, class Team, class Row, class Shared, class Sink>
SPECDEC_HD void row_logprobs(Team& team, Row& row, Shared& s, int turn, float chosen, int64_t top, Sink& sink) {
  if (team.rank() == 0) s.chosen[turn] = chosen;
  const TopElement largest = row_top<L>(team, row, s, turn);
  if (largest.key == kKeyNan || largest.key == -kKeyInf) {
    if (team.rank() == 0) sink.undefined();
    return;
  }
  TotalRankVisitor<L> v{{key_value(largest.key), 1.0f}, order_key(s.chosen[turn]), 0, 0};
  row.visit(v);
  s.rank_mass[turn][team.rank()] = v.total;
  s.rank_count[turn][team.rank()] = v.rank;
  team.sync();
  RowLogprobs logprobs{v.softmax.row_max, 0.0f};
  if (team.rank() == 0) {
    uint64_t total = 0, rank = 0;
    for (int r = 0; r < team.size(); ++r) {
      total += s.rank_mass[turn][r];
      rank += s.rank_count[turn][r];
    }
    logprobs.ln_total = ln_ratio(total);
    sink.chosen(logprobs.of(s.chosen[turn]), static_cast<int64_t>(rank));
  }
  Cut cut = keep_none();
  for (int64_t at = 0; at < top;) {
    const int n = static_cast<int>(min64(top - at, kListed));
    // 32 buckets an octave: right for logits of usual size, and only slower for others.
    const KeyGrid grid{cut.key < largest.key ? cut.key : largest.key, 18};
    cut = list_first<L>(team, row, s, cut, n, grid);
    if (team.rank() == 0) sink.block(at, s.sorted_value, s.sorted_id, n, logprobs);
    at += n;
  }
}

}  // namespace specdec
