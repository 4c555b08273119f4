// The first elements of a row, in order: candidates of top_p_candidates, top log-probabilities.
#pragma once

#include "specdec/log2.h"
#include "specdec/row_first.h"
#include "specdec/row_sample.h"

namespace specdec {

// The `count` largest probabilities of a row. Rank 0 calls sink.block(at, values, ids, n) for one stretch after another
// and at the end sink.reached(lens).
template <class Team, class Row, class Shared, class Sink>
SPECDEC_HD void row_candidates(Team& team, Row& row, Shared& s, int64_t count, float top_p, Sink& sink) {
  const uint64_t wanted = fraction_mass(top_p);
  constexpr KeyGrid kProbabilities{0x3FFFFFFF, 21};  // four buckets an octave, from 2 down to 2^-31
  uint64_t running = 0;
  int64_t reached = 0;
  row_top<Probability>(team, row, s, 0);
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

template <class L>
struct TotalRankVisitor {
  using Work = OwnWork<TotalRankVisitor>;

  Softmax softmax;
  float chosen;
  uint64_t total, rank;

  SPECDEC_HD bool chunk(const Chunk& logit, int64_t, int n) {
    SoftmaxChunk masses;
    masses.load(softmax, logit);
    total += scaled_sum(masses.scaled);
    int32_t before = 0;
    for (int j = 0; j < kChunk; ++j) before += static_cast<int32_t>(logit[j] >= chosen) & static_cast<int32_t>(j < n);
    rank += static_cast<uint64_t>(before);
    return true;
  }
  SPECDEC_HD bool tile(const typename L::Bits* x, int64_t first, int count) {
    return visit_chunks<L>(*this, x, first, count);
  }
};

// The chosen token's log-probability and rank, and the first `top` of the row. Rank 0 calls sink.undefined() if the row
// has no distribution; else sink.chosen(logprob, rank) and sink.block(at, ids, logprobs, n). `chosen` is the token's
// logit, needed on rank 0 only.
template <class L, class Team, class Row, class Shared, class Sink>
SPECDEC_HD void row_logprobs(Team& team, Row& row, Shared& s, int turn, float chosen, int64_t top, Sink& sink) {
  if (team.rank() == 0) s.chosen[turn] = chosen;
  const RowTop largest = row_top<L>(team, row, s, turn);
  if (!has_distribution(largest.key)) {
    if (team.rank() == 0) sink.undefined();
    return;
  }
  TotalRankVisitor<L> v{{key_value(largest.key), 1.0f}, s.chosen[turn], 0, 0};
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
    const KeyGrid grid = logit_grid(cut.key < largest.key ? cut.key : largest.key);
    cut = list_first<L>(team, row, s, cut, n, grid);
    if (team.rank() == 0) sink.block(at, s.sorted_value, s.sorted_id, n, logprobs);
    at += n;
  }
}

}  // namespace specdec
