// ngram_match, hybrid_mtp_ngram, ngram_index_update, ngram_index_reset. There is no index: histories are searched.
#include "specdec/ngram.h"

#include <cstring>
#include <vector>

#include "../op.h"
#include "specdec/flag.h"
#include "specdec_ops/hybrid_mtp_ngram.h"
#include "specdec_ops/ngram_index_reset.h"
#include "specdec_ops/ngram_index_update.h"
#include "specdec_ops/ngram_match.h"

namespace specdec::cpu {
namespace {

constexpr int64_t kTogether = 64;  // tokens

// Whether any of them is `token`.
SPECDEC_VECTOR bool any_is(const int64_t* tokens, int64_t token) {
  int64_t any = 0;
  for (int64_t i = 0; i < kTogether; ++i) any |= -static_cast<int64_t>(tokens[i] == token);
  return any != 0;
}

// As ngram_scan, but skips many columns at a time.
void scan(const NgramQuery& query, const int64_t* tokens, int64_t first, int64_t low, int64_t high, NgramMatch* best) {
  const bool latest = query.policy == MatchPolicy::kLatest;
  while (low < high && best->size < query.most) {
    const int64_t count = min64(kTogether, high - low), start = latest ? high - count : low;
    if (count < kTogether || any_is(tokens + (start - 1 - first), query.suffix[0])) {
      ngram_scan(query, tokens, first, start, start + count, best);
    }
    (latest ? high : low) += latest ? -count : count;
  }
}

// The text is the history's row, then the tail: columns whose tokens are all in one of the two, and those in between,
// for which both are copied.
NgramMatch search(const NgramQuery& query, const SlotText& text) {
  NgramMatch best = no_match();
  const int64_t end = text.end, seam = min64(end + query.most, query.text_end), from = max64(end - query.most, 0);
  int64_t both[2 * kMaxNgramSize];
  for (int64_t i = from; i < seam; ++i) both[i - from] = text[i];
  const bool latest = query.policy == MatchPolicy::kLatest;
  for (int part = latest ? 2 : 0; part >= 0 && part <= 2; part += latest ? -1 : 1) {
    if (part == 0) scan(query, text.history, 0, 1, min64(end + 1, query.text_end), &best);
    if (part == 1) scan(query, both, from, max64(end + 1, 1), seam, &best);
    if (part == 2) scan(query, text.drafts, end, max64(seam, end + 1), query.text_end, &best);
  }
  return best;
}

// Tokens of a slot before the budget.
struct Proposal {
  bool decodes;
  int64_t base, drafts;
};

template <bool kHybrid>
Proposal propose(const NgramMatchArgs& a, int64_t b) {
  if (a.seq_lens_encoder[b] > 0 || a.seq_lens_decoder[b] <= 0) return {false, 0, 0};
  const int64_t base = kHybrid ? hybrid_base(a.seq_lens_this_time[b], a.S) : 1;
  const int64_t wanted = ngram_wanted(base, a.use_draft_token_num, a.draft_token_num[b], a.S, a.max_dec_len[b],
                                      a.step_idx[b], a.pre_ids != nullptr);
  const ProposeText at = propose_text(a, b, base, a.prompt_lens[b], a.step_idx[b]);
  const SlotText text = {at.row, at.tail, at.end};
  const NgramQuery query(a.match_policy, wanted > 0 ? a.max_ngram_size : 0, a.min_ngram_size, at.prompt_end,
                         at.text_end, a.skip_last, text);
  if (!query.possible()) return {true, base, 0};
  const NgramMatch match = search(query, text);
  const int64_t count = ngram_draft_count(query, match, wanted, a.continue_cycles);
  int64_t* const drafts = a.draft_tokens + b * a.S + base;
  for (int64_t i = 0; i < count; ++i) drafts[i] = text[match.after + i % ngram_period(query, match)];
  return {true, base, max64(count, 0)};
}

template <bool kHybrid>
void match(const NgramMatchArgs& a, Context threads) {
  std::vector<Proposal> proposals(static_cast<size_t>(a.B));
  each(threads, a.B, a.L / 2, [&](int64_t b) { proposals[static_cast<size_t>(b)] = propose<kHybrid>(a, b); });
  BudgetScan scan{a.token_budget, 0};
  for (int64_t b = 0; b < a.B; ++b) scan.left += a.seq_lens_encoder[b] > 0 || a.seq_lens_decoder[b] > 0 ? 1 : 0;
  for (int64_t b = 0; b < a.B; ++b) {
    const auto& [decodes, base, drafts] = proposals[static_cast<size_t>(b)];
    const bool prefill = a.seq_lens_encoder[b] > 0;
    scan.pass(prefill || decodes);
    const int64_t tokens = prefill ? a.seq_lens_this_time[b] : decodes ? scan.grant(base, drafts) : 0;
    scan.used += tokens;
    int64_t* const row = a.draft_tokens + b * a.S;
    const bool padded = a.pad_to_max && decodes;
    if (padded) std::fill(row + tokens, row + a.S, row[tokens - 1]);
    a.seq_lens_this_time[b] = static_cast<int32_t>(padded ? a.S : tokens);
  }
}

}  // namespace

void ngram_match(const NgramMatchArgs& a, Context threads) { match<false>(a, threads); }
SPECDEC_OP(ngram_match, kUnlimited)

void hybrid_mtp_ngram(const HybridMtpNgramArgs& a, Context threads) { match<true>(a, threads); }
SPECDEC_OP(hybrid_mtp_ngram, kUnlimited)

void ngram_index_update(const NgramIndexUpdateArgs&, Context) {}
SPECDEC_OP(ngram_index_update, kUnlimited)

void ngram_index_reset(const NgramIndexResetArgs& a, Context) {
  for (int64_t b = 0; b < a.M; ++b) {
    if (a.reset_slots[b]) std::memset(a.index + b * a.X, 0, static_cast<size_t>(a.X));
  }
}
SPECDEC_OP(ngram_index_reset, kUnlimited)

}  // namespace specdec::cpu
