// Penalties of a slot's output rows (contract, section 3), in time proportional to its history.
#pragma once

#include "specdec/integers.h"
#include "specdec/row_floats.h"

namespace specdec {

struct PenaltyParams {
  float repetition, frequency, presence;

  SPECDEC_HD bool any() const { return repetition != 1.0f || frequency != 0.0f || presence != 0.0f; }

  // The logit of a token of the history that occurs `generated` times behind the prompt.
  SPECDEC_HD float apply(float logit, int64_t generated) const {
    const float l = logit > 0.0f ? div_rn(logit, repetition) : mul_rn(logit, repetition);
    if (generated == 0) return l;
    return sub_rn(sub_rn(l, mul_rn(u64_to_f32(static_cast<uint64_t>(generated)), frequency)), presence);
  }
};

// Output rows [first, stop) of one slot, whose row 0 is `slot_first`.
struct PenaltyRows {
  int64_t first, stop, slot_first, draft_width;

  // Drafts that precede what a row predicts; does not fall with the row.
  SPECDEC_HD int64_t drafts(int64_t row) const { return clamp64(row - slot_first, 0, draft_width - 1); }
};

// Whether a row's token would be one of the first `min_dec_len` generated ones; step_idx may be any number.
SPECDEC_HD bool below_min_length(int64_t step_idx, int64_t drafts, int64_t min_dec_len) {
  return step_idx <= kInt64Max - drafts && step_idx + drafts < min_dec_len;
}

// What is known of a token: how often it was generated, and where else it stands.
constexpr int32_t kInPrompt = 1 << 30;
constexpr int32_t kInDrafts = 1 << 29;
constexpr int32_t kGeneratedMask = kInDrafts - 1;

// The tallies of token ids [first, first + size), all 0 before and after. `Table` has, each indivisible:
//   add(i, n), mark(i, bits), take(i): the tally, which becomes 0.
template <class Table>
struct TokenWindow {
  Table& table;
  int64_t first, size;

  SPECDEC_HD bool has(int64_t token) const { return token >= first && token - first < size; }
  SPECDEC_HD int64_t index(int64_t token) const { return token - first; }
};

// Visitors of a stretch of history: tile(ids, column of ids[0], count).
template <class Table>
struct TallyVisitor {
  TokenWindow<Table> window;
  int64_t prompt_end;

  SPECDEC_HD bool tile(const int64_t* ids, int64_t column, int count) {
    for (int i = 0; i < count; ++i) {
      if (!window.has(ids[i])) continue;
      if (column + i < prompt_end) {
        window.table.mark(window.index(ids[i]), kInPrompt);
      } else {
        window.table.add(window.index(ids[i]), 1);
      }
    }
    return true;
  }
};

// Drafts count from the row on that sees them, so they are only marked.
template <class Table>
struct DraftVisitor {
  TokenWindow<Table> window;

  SPECDEC_HD bool tile(const int64_t* ids, int64_t, int count) {
    for (int i = 0; i < count; ++i) {
      if (window.has(ids[i])) window.table.mark(window.index(ids[i]), kInDrafts);
    }
    return true;
  }
};

// Whoever takes a token's tally penalises it in all rows. `logits.load(row, token)` and `logits.store(row, token, x)`;
// `drafts[j]` is the slot's j-th draft, from 1.
template <class Table, class Logits, class Drafts>
struct PenaltyVisitor {
  TokenWindow<Table> window;
  PenaltyParams params;
  PenaltyRows rows;
  Logits& logits;
  Drafts& drafts;

  SPECDEC_HD bool tile(const int64_t* ids, int64_t, int count) {
    for (int i = 0; i < count; ++i) {
      if (!window.has(ids[i])) continue;
      const int32_t tally = window.table.take(window.index(ids[i]));
      if (tally != 0) penalize(ids[i], tally);
    }
    return true;
  }

  SPECDEC_HD void penalize(int64_t token, int32_t tally) {
    int64_t generated = tally & kGeneratedMask, counted = 0;
    for (int64_t row = rows.first; row < rows.stop; ++row) {
      if (tally & kInDrafts) {
        for (; counted < rows.drafts(row); ++counted) generated += drafts[counted + 1] == token ? 1 : 0;
      }
      if (generated == 0 && (tally & kInPrompt) == 0) continue;
      logits.store(row, token, params.apply(logits.load(row, token), generated));
    }
  }
};

// Penalises a slot's rows. The table's first `window_size` tallies are 0. `history.visit(v)` streams this rank's part
// of columns [0, end) of the history, on rank 0 `history.visit_drafts(v, n)` drafts 1 .. n; ranks meet in team.sync().
template <class Team, class Table, class Text, class Logits, class Drafts>
SPECDEC_HD void penalize_rows(Team& team, Table& table, int64_t window_size, int64_t vocabulary, Text& history,
                              int64_t prompt_end, const PenaltyParams& params, const PenaltyRows& rows, Logits& logits,
                              Drafts& drafts) {
  const int64_t seen_drafts = team.rank() == 0 ? rows.drafts(rows.stop - 1) : 0;
  for (int64_t first = 0; first < vocabulary; first += window_size) {
    const TokenWindow<Table> window{table, first, min64(window_size, vocabulary - first)};
    TallyVisitor<Table> tally{window, prompt_end};
    history.visit(tally);
    DraftVisitor<Table> mark{window};
    history.visit_drafts(mark, seen_drafts);
    team.sync();
    PenaltyVisitor<Table, Logits, Drafts> penalty{window, params, rows, logits, drafts};
    history.visit(penalty);
    history.visit_drafts(penalty, seen_drafts);
    team.sync();
  }
}

// Makes bad tokens, and end tokens in rows below the minimum length, impossible. Each id belongs to one rank, so that
// no two write the same logit. Follows penalize_rows.
template <class Team, class Bad, class End, class Logits>
SPECDEC_HD void forbid_tokens(Team& team, int64_t vocabulary, Bad& bad, int64_t bad_count, End& end, int64_t end_count,
                              int64_t step_idx, int64_t min_dec_len, const PenaltyRows& rows, Logits& logits) {
  const float never = f32_from_bits(0xFF800000u);
  for (int64_t i = 0; i < bad_count; ++i) {
    const int64_t token = bad[i];
    if (token < 0 || token >= vocabulary || token % team.size() != team.rank()) continue;
    for (int64_t row = rows.first; row < rows.stop; ++row) logits.store(row, token, never);
  }
  if (!below_min_length(step_idx, rows.drafts(rows.first), min_dec_len)) return;
  for (int64_t i = 0; i < end_count; ++i) {
    const int64_t token = end[i];
    if (token < 0 || token >= vocabulary || token % team.size() != team.rank()) continue;
    for (int64_t row = rows.first; row < rows.stop; ++row) {
      if (below_min_length(step_idx, rows.drafts(row), min_dec_len)) logits.store(row, token, never);
    }
  }
}

}  // namespace specdec
