// Candidates and log-probabilities of a row.
#pragma once

#include "specdec/rows/row_top.h"

namespace specdec {

// The `count` largest probabilities of a row. Rank 0 calls sink.block(at, values, ids, n) for one stretch after another
// and at the end sink.reached(lens).
template <class Team, class Row, class Shared, class Sink>
SPECDEC_HD void row_candidates(Team& team, Row& row, Shared& s, int turn, int64_t count, float top_p, Sink& sink) {
  const uint64_t wanted = fraction_mass(top_p);
  const RowTop top = read_row<Probability>(team, row, s, turn, kNoMasses);
  uint64_t running = 0;
  int64_t reached = 0;
  list_row<Probability>(team, row, s, top.key, kProbabilityShift, count, [&](int64_t at, int n) {
    for (int i = 0; i < n && reached == 0; ++i) {
      running += prob_mass(s.sorted_value[i]);
      if (running >= wanted) reached = at + i + 1;
    }
    sink.block(at, s.sorted_value, s.sorted_id, n);
  });
  if (team.rank() == 0) sink.reached(reached > 0 ? reached : count);
}

// The chosen token's log-probability and rank, and the first `top` of the row. Rank 0 calls sink.undefined() if the row
// has no distribution; else sink.chosen(logprob, rank) and sink.block(at, logits, ids, n, logprobs). `chosen` is the
// token's logit.
template <class L, class Team, class Row, class Shared, class Sink>
SPECDEC_HD void row_logprobs(Team& team, Row& row, Shared& s, int turn, float chosen, int64_t top, Sink& sink) {
  const RowTop largest = read_row<L>(team, row, s, turn, 1.0f, chosen);
  if (!has_distribution(largest.key)) {
    if (team.rank() == 0) sink.undefined();
    return;
  }
  s.rank_count[turn][team.rank()] = largest.own_count;
  const uint64_t total = share_mass(team, s, turn, own_shares(row, s, {largest.value(), 1.0f})).total;
  RowLogprobs logprobs{largest.value(), 0.0f};
  if (team.rank() == 0) {
    logprobs.ln_total = ln_ratio(total);
    sink.chosen(logprobs.of(chosen), static_cast<int64_t>(sum_ranks(team, s.rank_count[turn]).total));
  }
  list_row<L>(team, row, s, largest.key, kLogitShift, top,
              [&](int64_t at, int n) { sink.block(at, s.sorted_value, s.sorted_id, n, logprobs); });
}

}  // namespace specdec
