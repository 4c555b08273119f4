// Drafts from the request's own history (contract, section 6): the search, and the batch's token budget.
//
// The text is prompt ++ generated (++ MTP drafts). A match is identified by `after`, the column of the token after the
// occurrence. The longest size that occurs wins, so one pass for the longest common suffix of text[0, after) and the
// text replaces trying the sizes one by one.
#pragma once

#include "specdec/contract.h"
#include "specdec/integers.h"

namespace specdec {

// Encoding in seq_lens_this_time between the launch that finds drafts and the one that grants them: base tokens and
// drafts, together at most S.
constexpr int64_t kMaxPacked = 32767;
SPECDEC_HD int32_t pack_proposal(int64_t base, int64_t drafts) { return static_cast<int32_t>(base << 16 | drafts); }
SPECDEC_HD int32_t packed_base(int32_t packed) { return packed >> 16; }
SPECDEC_HD int32_t packed_drafts(int32_t packed) { return packed & 0xFFFF; }

// The sizes tried on a text, and the haystack of matches.
struct NgramSizes {
  MatchPolicy policy;
  int most, least;  // sizes tried; most < least: none
  int64_t prompt_end, text_end;
  int64_t search_end;  // of what is searched

  // Unset, for shared memory of devices.
  NgramSizes() = default;

  // `skip_last`: the last token is in no haystack.
  SPECDEC_HD NgramSizes(MatchPolicy match_policy, int largest, int smallest, int64_t prompt, int64_t end,
                        bool skip_last)
      : policy(match_policy),
        most(static_cast<int>(min64(largest, end - query_start(match_policy, prompt, end)))),
        least(smallest),
        prompt_end(prompt),
        text_end(end),
        search_end(skip_last ? end - 1 : end) {}

  // The earliest first column of a query: in the generated (and drafted) part; kLatest continues into the prompt once
  // that is nonempty.
  static SPECDEC_HD int64_t query_start(MatchPolicy policy, int64_t prompt_end, int64_t text_end) {
    return policy == MatchPolicy::kLatest && text_end > prompt_end ? 0 : prompt_end;
  }

  SPECDEC_HD bool possible() const { return most >= least; }

  // First column of the haystack that a match at `after` may use. LEFTMOST has two haystacks: prompt, generated part.
  SPECDEC_HD int64_t haystack_start(int64_t after) const {
    if (after >= search_end) return after;  // nothing
    return policy == MatchPolicy::kLeftmost && after >= prompt_end ? prompt_end : 0;
  }
  SPECDEC_HD int64_t haystack_stop(int64_t after) const {
    return policy == MatchPolicy::kLeftmost && after < prompt_end ? prompt_end : search_end;
  }
};

struct NgramQuery : NgramSizes {
  int64_t suffix[kMaxNgramSize];  // suffix[j]: the text's last token but j

  NgramQuery() = default;

  // `text[i]` is the text.
  template <typename Text>
  SPECDEC_HD NgramQuery(MatchPolicy match_policy, int largest, int smallest, int64_t prompt, int64_t end,
                        bool skip_last, Text& text)
      : NgramSizes(match_policy, largest, smallest, prompt, end, skip_last) {
    for (int j = 0; j < kMaxNgramSize; ++j) suffix[j] = j < most ? text[end - 1 - j] : 0;
  }
};

// No default values: devices keep matches in shared memory, which has no initialisers.
struct NgramMatch {
  int size;  // 0: none
  int64_t after;
};

SPECDEC_HD NgramMatch no_match() { return {0, 0}; }

// Drafts of a match: the wanted number, limited by its haystack unless `continue_cycles`. Draft i is token `after` + i
// % period of the text: beyond its end, drafts repeat.
SPECDEC_HD int64_t ngram_draft_count(const NgramSizes& sizes, const NgramMatch& match, int64_t wanted,
                                     bool continue_cycles) {
  if (match.size == 0) return 0;
  return continue_cycles ? wanted : min64(wanted, sizes.haystack_stop(match.after) - match.after);
}
SPECDEC_HD int64_t ngram_period(const NgramSizes& sizes, const NgramMatch& match) {
  return sizes.text_end - match.after;
}

// Whether the policy prefers match `a` to `b`.
SPECDEC_HD bool preferred(MatchPolicy policy, const NgramMatch& a, const NgramMatch& b) {
  if (a.size != b.size) return a.size > b.size;
  if (a.size == 0) return false;
  return policy == MatchPolicy::kLatest ? a.after > b.after : a.after < b.after;
}

// Length of the match at `after`, at most `most`. `tokens[i]` is text[first + i] and reaches back as far as needed.
SPECDEC_HD int ngram_size_at(const NgramQuery& query, const int64_t* tokens, int64_t first, int64_t after) {
  const int64_t room = min64(query.most, after - query.haystack_start(after));
  int size = 0;
  while (size < room && tokens[after - 1 - size - first] == query.suffix[size]) ++size;
  return size;
}

// The same on a text that can be indexed anywhere, at its end too: `text[i]` is the text.
template <typename Text>
SPECDEC_HD int ngram_size_in(const NgramSizes& sizes, Text& text, int64_t after) {
  const int64_t room = min64(sizes.most, after - sizes.haystack_start(after));
  int size = 0;
  while (size < room && text[after - 1 - size] == text[sizes.text_end - 1 - size]) ++size;
  return size;
}

// A match as one number, to keep the best by a maximum: the larger is `preferred`, 0 is no match. Columns are below
// 2^26.
constexpr uint32_t kMaxRankedColumn = (1u << 26) - 1;

SPECDEC_HD uint32_t ngram_rank(MatchPolicy policy, const NgramMatch& match) {
  if (match.size == 0) return 0;
  const uint32_t column = static_cast<uint32_t>(match.after);
  return static_cast<uint32_t>(match.size) << 26 |
         (policy == MatchPolicy::kLatest ? column : kMaxRankedColumn - column);
}

SPECDEC_HD NgramMatch ngram_ranked(MatchPolicy policy, uint32_t rank) {
  if (rank == 0) return no_match();
  const uint32_t column = rank & kMaxRankedColumn;
  return {static_cast<int>(rank >> 26), policy == MatchPolicy::kLatest ? column : kMaxRankedColumn - column};
}

namespace detail {

// Whether any of eight tokens may match, without branches: false only if none does.
SPECDEC_HD bool maybe_in_eight(const int64_t* tokens, int64_t token) {
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
  // The low halves, four at a time, to save loads in checked builds.
  typedef int32_t Four __attribute__((vector_size(16), aligned(8), may_alias));
  typedef int64_t Two __attribute__((vector_size(16)));
  const Four* const x = reinterpret_cast<const Four*>(tokens);
  constexpr Four kLow = {0, 2, 4, 6};
  const int32_t low = static_cast<int32_t>(token);
  const Four equal = (__builtin_shuffle(x[0], x[1], kLow) == low) | (__builtin_shuffle(x[2], x[3], kLow) == low);
  const Two any = reinterpret_cast<Two>(equal);
  return (any[0] | any[1]) != 0;
#else
  bool any = false;
  for (int j = 0; j < 8; ++j) any |= tokens[j] == token;
  return any;
#endif
}

}  // namespace detail

// Search matches with `after` in [low, high), 1 <= low, high <= text_end, in the order of the policy, and improve
// `best`, which must come from columns earlier in that order. `tokens[i]` is text[first + i], with first <= max(0, low
// - most), up to and without text[high - 1]'s successor. Stops when no better match is possible.
SPECDEC_HD void ngram_scan(const NgramQuery& query, const int64_t* tokens, int64_t first, int64_t low, int64_t high,
                           NgramMatch* best) {
  const bool latest = query.policy == MatchPolicy::kLatest;
  const int64_t last_token = query.suffix[0];
  for (int64_t done = 0, count = high - low; done < count && best->size < query.most;) {
    // The text's last token must precede `after`, which excludes most columns.
    const int64_t block = latest ? high - done - 8 : low + done;
    if (count - done >= 8 && !detail::maybe_in_eight(tokens + (block - 1 - first), last_token)) {
      done += 8;
      continue;
    }
    for (const int64_t stop = min64(done + 8, count); done < stop && best->size < query.most; ++done) {
      const int64_t after = latest ? high - 1 - done : low + done;
      const int size = ngram_size_at(query, tokens, first, after);
      if (size >= query.least && size > best->size) *best = {size, after};
    }
  }
}

// A slot's share of the token budget. Slots are granted in ascending order.
struct BudgetScan {
  int64_t budget;
  int64_t left;  // slots from here on with a prefill chunk or decoding
  int64_t used = 0;  // tokens of the slots before

  SPECDEC_HD void pass(bool active) { left -= active ? 1 : 0; }

  // Tokens of a decode slot that has `base` tokens and `drafts` more to propose; after `pass`.
  SPECDEC_HD int64_t grant(int64_t base, int64_t drafts) const {
    return base + clamp64(budget - used - left - base, 0, drafts);
  }
};

// Drafts that may follow a slot's `base` tokens; none if not positive. `wish`: the request's limit, including existing
// drafts, if it applies. `in_history`: step_idx is a column of pre_ids, and counts the drafts too.
SPECDEC_HD int64_t ngram_wanted(int64_t base, bool asked, int32_t wish, int64_t draft_width, int64_t max_dec_len,
                                int64_t step_idx, bool in_history) {
  const int64_t room = wrap_sub(wrap_sub(max_dec_len, step_idx), in_history ? 1 : base);
  return min64((asked ? min64(int64_t{wish} + 1, draft_width) : draft_width) - base, room);
}

SPECDEC_HD int64_t hybrid_base(int32_t slt, int64_t draft_width) { return clamp64(slt, 1, draft_width); }

// Tokens of a row of pre_ids, up to the column step_idx.
SPECDEC_HD int64_t pre_ids_count(int64_t step_idx, int64_t row_width) {
  return clamp64(step_idx, -1, row_width - 1) + 1;
}

// A slot's text: `row` up to `end`, then `tail`: its drafts or, with pre_ids, its row of that.
struct ProposeText {
  const int64_t *row, *tail;
  int64_t prompt_end, end, text_end;
};

template <typename Args>
SPECDEC_HD ProposeText propose_text(const Args& a, int64_t b, int64_t base, int64_t prompt_len, int64_t step_idx) {
  const int64_t *const row = a.token_ids_all + b * a.L, *const drafts = a.draft_tokens + b * a.S;
  const bool in_history = a.pre_ids != nullptr;
  const History history = history_bounds(a.L, prompt_len, in_history ? 0 : step_idx);
  return {row, in_history ? a.pre_ids + b * a.P : drafts + 1, history.prompt_end, history.end,
          history.end + (in_history ? pre_ids_count(step_idx, a.P) : base - 1)};
}

}  // namespace specdec
