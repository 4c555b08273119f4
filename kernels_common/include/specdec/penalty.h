// Penalties of a slot's output rows (contract, section 3), in time proportional to its history.
#pragma once

#include "specdec/integers.h"
#include "specdec/row_floats.h"

namespace specdec {

struct PenaltyParams {
  float repetition, frequency, presence;

  SPECDEC_HD bool any() const { return repetition != 1.0f || frequency != 0.0f || presence != 0.0f; }

  // Reduction of the logit of a token that occurs `generated` times after the prompt, without presence.
  SPECDEC_HD float counted(int64_t generated) const {
    return mul_rn(u64_to_f32(static_cast<uint64_t>(generated)), frequency);
  }

  // The logit of a token of the history, whose counted() is `taken`.
  SPECDEC_HD float apply(float logit, int64_t generated, float taken) const {
    const float l = repeated(logit);
    return generated == 0 ? l : sub_rn(sub_rn(l, taken), presence);
  }

 private:
  SPECDEC_HD float repeated(float logit) const {
#if defined(__CUDA_ARCH__)
    return logit > 0.0f ? div_rn(logit, repetition) : mul_rn(logit, repetition);
#else
    // Signs are nearly random, and a mispredicted branch costs more than a division.
    const uint32_t divide = 0u - static_cast<uint32_t>(logit > 0.0f);
    return f32_from_bits((f32_bits(div_rn(logit, repetition)) & divide) |
                         (f32_bits(mul_rn(logit, repetition)) & ~divide));
#endif
  }
};

// The first of `count` tokens that is a rank's, of a team that shares them; that of rank `ranks` is after the last.
SPECDEC_HD int64_t rank_tokens(int64_t count, int rank, int ranks) {
  constexpr int64_t kWhole = 64;  // are not divided
  const int64_t parts = (count + kWhole - 1) / kWhole, share = parts / ranks, more = parts % ranks;
  return min64((share * rank + min64(rank, more)) * kWhole, count);
}

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

// A token's tally: its generated count, and its other occurrences.
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
      const int64_t token = ids[i];
      if (!window.has(token)) continue;
      if (column + i < prompt_end) {
        window.table.mark(window.index(token), kInPrompt);
      } else {
        window.table.add(window.index(token), 1);
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
      const int64_t token = ids[i];
      if (window.has(token)) window.table.mark(window.index(token), kInDrafts);
    }
    return true;
  }
};

// The thread that takes a token's tally penalises it in all rows. `logits.load(row, token)` and `logits.store(row,
// token, x)`; `drafts[j]` is the slot's j-th draft, from 1.
template <class Table, class Logits, class Drafts>
struct PenaltyVisitor {
  TokenWindow<Table> window;
  PenaltyParams params;
  PenaltyRows rows;
  Logits& logits;
  Drafts& drafts;

  SPECDEC_HD bool tile(const int64_t* ids, int64_t, int count) {
    for (int i = 0; i < count; ++i) {
      const int64_t token = ids[i];
      if (!window.has(token)) continue;
      const int32_t tally = window.table.take(window.index(token));
      if (tally != 0) penalize(token, tally);
    }
    return true;
  }

  SPECDEC_HD void penalize(int64_t token, int32_t tally) {
    const PenaltyParams p = params;
    const int64_t stop = rows.stop;
    int64_t generated = tally & kGeneratedMask, counted = 0;
    float taken = p.counted(generated);
    for (int64_t row = rows.first; row < stop; ++row) {
      if (tally & kInDrafts) {
        for (; counted < rows.drafts(row); ++counted) generated += drafts[counted + 1] == token ? 1 : 0;
        taken = p.counted(generated);
      }
      if (generated == 0 && (tally & kInPrompt) == 0) continue;
      logits.store(row, token, p.apply(logits.load(row, token), generated, taken));
    }
  }
};

// A table that lists what this rank was the first to tally, up to `most` indices.
template <class Table>
struct ListingTable {
  Table& table;
  int32_t* list;
  int count, most;

  SPECDEC_HD void add(int64_t i, int32_t n) { note(i, table.add(i, n)); }
  SPECDEC_HD void mark(int64_t i, int32_t bits) { note(i, table.mark(i, bits)); }
  SPECDEC_HD int32_t take(int64_t i) { return table.take(i); }

 private:
  SPECDEC_HD void note(int64_t i, int32_t before) {
    if (before == 0 && count < most) list[count++] = static_cast<int32_t>(i);
  }
};

// Penalises a slot's rows. The table's first `window_size` tallies are 0; its add and mark return what was there
// before, and take_alone(i) is take(i) where no other rank looks. `history.visit(v)` streams this rank's part of
// columns [0, end) of the history, on rank 0 `history.visit_drafts(v, n)` drafts 1 .. n; ranks meet in team.sync(). If
// `list_holds`, which is the same on all ranks, `list` has room for all tokens of any rank's part.
template <class Team, class Table, class Text, class Logits, class Drafts>
SPECDEC_HD void penalize_rows(Team& team, Table& table, int64_t window_size, int64_t vocabulary, Text& history,
                              int64_t prompt_end, const PenaltyParams& params, const PenaltyRows& rows, Logits& logits,
                              Drafts& drafts, int32_t* list, int most, bool list_holds) {
  using Listing = ListingTable<Table>;
  const int64_t seen_drafts = team.rank() == 0 ? rows.drafts(rows.stop - 1) : 0;
  for (int64_t first = 0; first < vocabulary; first += window_size) {
    Listing listing{table, list, 0, most};
    const TokenWindow<Listing> window{listing, first, min64(window_size, vocabulary - first)};
    TallyVisitor<Listing> tally{window, prompt_end};
    history.visit(tally);
    DraftVisitor<Listing> mark{window};
    history.visit_drafts(mark, seen_drafts);
    team.sync();
    PenaltyVisitor<Listing, Logits, Drafts> penalty{window, params, rows, logits, drafts};
    if (list_holds) {
      for (int k = 0; k < listing.count; ++k) penalty.penalize(first + list[k], table.take_alone(list[k]));
    } else {
      history.visit(penalty);
      history.visit_drafts(penalty, seen_drafts);
    }
    team.sync();
  }
}

// Forbids bad tokens, and end tokens in rows below the minimum length. Each id belongs to one rank, so no logit is
// written twice. Follows penalize_rows.
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
