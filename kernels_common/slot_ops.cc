// The rules of one slot, run serially over a batch. The first number of a Split is how many parts bulk work is split
// into.
#include <tvm/ffi/error.h>

#include <cmath>
#include <cstring>

#include "serial_op.h"
#include "specdec/bitmask.h"
#include "specdec/draft_rows.h"
#include "specdec/ngram.h"
#include "specdec/ngram_index.h"
#include "specdec/phases.h"
#include "specdec/row_floats.h"
#include "specdec/schedule.h"
#include "specdec/status.h"
#include "specdec/step_index.h"
#include "specdec/verify.h"
#include "specdec/verify_lanes.h"
#include "specdec_ops/apply_token_bitmask.h"
#include "specdec_ops/gather_accepted.h"
#include "specdec_ops/hybrid_mtp_ngram.h"
#include "specdec_ops/insert_first_token.h"
#include "specdec_ops/limit_thinking.h"
#include "specdec_ops/ngram_index_update.h"
#include "specdec_ops/ngram_match.h"
#include "specdec_ops/prepare_inputs.h"
#include "specdec_ops/schedule_slots.h"
#include "specdec_ops/set_stop_sequences.h"
#include "specdec_ops/truncate_drafts.h"
#include "specdec_ops/update_model_status.h"
#include "specdec_ops/verify_draft_tokens.h"
#include "specdec_ops/write_accepted.h"

namespace specdec::serial {
namespace {

// Sections 1 and 2

void prepare_inputs(const PrepareInputsArgs& a, const Split&) {
  for (int64_t i = 0; i < a.T_cap; ++i) a.ids_remove_padding[i] = 0, a.batch_id_per_token[i] = -1;
  for (int64_t i = 0; i < a.R_cap; ++i) a.batch_id_per_token_output[i] = -1;
  int64_t tokens = 0, keys = 0, rows = 0;
  a.cu_seqlens_q[0] = a.cu_seqlens_k[0] = a.cu_seqlens_q_output[0] = 0;
  for (int64_t b = 0; b < a.B; ++b) {
    const StepShare share =
        step_share(a.seq_lens_this_time[b], a.seq_lens_encoder[b], a.seq_lens_decoder[b], a.I_cap, a.S);
    const int64_t* source = a.seq_lens_encoder[b] > 0 ? a.input_ids + b * a.I_cap : a.draft_tokens + b * a.S;
    for (int64_t i = 0; i < share.tokens && tokens + i < a.T_cap; ++i) {
      a.ids_remove_padding[tokens + i] = source[i];
      a.batch_id_per_token[tokens + i] = static_cast<int32_t>(b);
    }
    for (int64_t i = rows; i < rows + share.rows && i < a.R_cap; ++i) {
      a.batch_id_per_token_output[i] = static_cast<int32_t>(b);
    }
    a.cu_seqlens_q[b + 1] = saturate32(tokens += share.tokens);
    a.cu_seqlens_k[b + 1] = saturate32(keys += share.keys);
    a.cu_seqlens_q_output[b + 1] = saturate32(rows += share.rows);
  }
  a.num_tokens[0] = saturate32(tokens);
  a.num_tokens[1] = saturate32(rows);
}
SPECDEC_OP(prepare_inputs, kUnlimited)

// Section 4

using Ends = const int64_t*;

struct Row {
  int64_t* next;
  void append(int64_t token) { *next++ = token; }
};

using SlotEmission = Emission<Ends, Row>;

constexpr int kLaneWidth = 8;  // candidates that a lane holds

// Phase 1 as lanes do it: every position on its own, then what the masks say. Whether it ended with a rejected draft.
// `vote(i, votes)` sets the bits of the draft at i.
template <typename Vote>
bool emit_by_lanes(const VerifySlot& slot, AcceptPolicy policy, Vote vote, const int64_t* drafts, Ends ends,
                   const EmitRule& rule, int64_t window, SlotEmission& out) {
  LaneVotes votes = {0, 0, 0};
  for (int64_t i = 0; i < slot.drafts; ++i) {
    vote(i, &votes);
    bool is_end = false;
    for (int64_t e = 0; e < rule.end_count; ++e) is_end = is_end || ends[e] == drafts[i];
    votes.stops |= static_cast<uint32_t>(rule.stops(i + 1, is_end)) << i;
  }
  const EmittedDrafts emitted = emitted_drafts(slot, policy, votes, window);
  for (int i = 0; i < emitted.count; ++i) out.emit(drafts[i]);
  if (out.stopped() != emitted.stopped) {
    TVM_FFI_THROW(RuntimeError) << "verify_draft_tokens: lanes and emission disagree on whether the slot stopped";
  }
  return emitted.rejected;
}

// The votes of any judge.
template <typename Judge>
auto votes_of(const VerifySlot& slot, Judge& judge, const int64_t* drafts) {
  return [&slot, &judge, drafts](int64_t i, LaneVotes* votes) {
    const int64_t passing = judge.accepted(slot, i, drafts);
    votes->alone |= static_cast<uint32_t>(passing == 1) << i;
    votes->window |= static_cast<uint32_t>(passing > 1) << i;
  };
}

void verify_draft_tokens(const VerifyDraftTokensArgs& a, const Split& split) {
  const int64_t parts = split[0];
  for (int64_t i = 0; i < a.M * a.S; ++i) a.accept_tokens[i] = -1;
  for (int64_t b = 0; b < a.M; ++b) a.accept_num[b] = 0;
  Ends ends = a.end_tokens;
  for (int64_t b = 0; b < a.B && a.R_cap > 0; ++b) {
    const VerifyState state = load_state(a, b);
    if (!verify_emits(state)) continue;
    const VerifySlot slot(state, a.S, a.R_cap);
    Row sink{a.accept_tokens + b * a.S};
    const EmitRule rule = {a.E, slot.limit, a.accept_policy == AcceptPolicy::kAcceptAll, a.end_at_limit};
    SlotEmission out(ends, rule, sink);
    const int64_t* drafts = a.draft_tokens + b * a.S + 1;
    const auto run = [&](auto judge) {
      if (parts == 0) {
        emit_by_lanes(slot, a.accept_policy, votes_of(slot, judge, drafts), drafts, ends, rule, a.verify_window, out);
      } else {
        verify_drafts(slot, a.accept_policy, judge, drafts, out);
      }
      if (!out.stopped()) out.emit(judge.token(slot, out.count()));
    };
    switch (a.strategy) {
      case Strategy::kGreedy:
      case Strategy::kTargetMatch: run(JudgeByToken<const int64_t* const>{a.target_tokens}); break;
      case Strategy::kTopp:
        if (parts == 0 && a.C <= kLaneWidth) {
          const auto list = [&](int64_t i) {
            const int64_t row = slot.row(i);
            return LaneCandidates<kLaneWidth>(a.candidate_ids, a.candidate_scores, row * a.C, a.C,
                                              a.candidate_lens[row]);
          };
          uint32_t best = 0;
          for (int64_t i = 0; i < slot.drafts; ++i) best |= uint32_t{list(i).best_is(drafts[i])} << i;
          const auto vote = [&](int64_t i, LaneVotes* votes) {
            const bool window = list(i).second_is(drafts[i]) && window_follows(best, i, a.verify_window, slot.drafts);
            votes->alone |= uint32_t{list(i).contain(drafts[i])} << i;
            votes->window |= uint32_t{window} << i;
          };
          emit_by_lanes(slot, a.accept_policy, vote, drafts, ends, rule, a.verify_window, out);
          const int64_t i = out.count();
          if (!out.stopped()) out.emit(list(i).draw(a.top_p[b], slot.random(i, Purpose::kCandidate).u64()));
          break;
        }
        run(JudgeByCandidates<const int64_t* const, const float* const, const int32_t* const>{
            a.candidate_ids, a.candidate_scores, a.candidate_lens, a.C, a.verify_window, a.top_p[b]});
        break;
      case Strategy::kRejection: {
        const float* q = a.draft_probs == nullptr ? nullptr : a.draft_probs + b * (a.S - 1) * a.V;
        JudgeByProbs<const float* const, const float*> judge{a.target_probs, q == nullptr ? nullptr : &q, a.V};
        const bool rejected = parts == 0 ? emit_by_lanes(slot, a.accept_policy, votes_of(slot, judge, drafts), drafts,
                                                         ends, rule, a.verify_window, out)
                                         : verify_drafts(slot, a.accept_policy, judge, drafts, out);
        if (out.stopped()) break;
        const int64_t i = out.count(), step = max64(a.V / max64(parts, 1), 1);
        const auto tile = [&](int64_t first) {
          return ResidualTile{a.target_probs + slot.row(i) * a.V + first,
                              rejected && q != nullptr ? q + i * a.V + first : nullptr, first, min64(step, a.V - first),
                              rejected && q == nullptr ? drafts[i] : -1};
        };
        ResidualSum sum = no_residual();
        for (int64_t first = (a.V - 1) / step * step; first >= 0; first -= step) {  // any order: here from the end
          ResidualSum part = no_residual();
          part.add(tile(first));
          sum.merge(part);
        }
        int64_t token = sum.total == 0 ? sum.best : -1;
        const uint64_t point = draw_point(slot.random(i, Purpose::kResidual).u64(), sum.total);
        uint64_t below = 0;
        for (int64_t first = 0; token < 0; first += step) token = residual_find(tile(first), point, &below);
        out.emit(token);
      }
    }
    a.accept_num[b] = static_cast<int32_t>(out.count());
  }
}
SPECDEC_OP(verify_draft_tokens, kUnlimited)

// Section 5

void update_model_status(const UpdateModelStatusArgs& a, const Split&) {
  a.has_running[0] = false;
  for (int64_t b = 0; b < a.B; ++b) {
    SlotStatus slot{a.step_idx[b],           a.seq_lens_encoder[b], a.seq_lens_decoder[b],
                    a.seq_lens_this_time[b], a.accept_num[b],       a.stop_flags[b]};
    int64_t* tokens = a.accept_tokens + b * a.S;
    Ends ends = a.end_tokens;
    const bool cut = a.end_at_limit && !slot.stopped && !a.is_block_step[b];
    const int64_t emitted = cut ? clamp64(slot.accept_num, 0, a.S) : 0;
    for (int64_t i = 0; i < emitted; ++i) {
      if (!ends_slot(slot.step_idx, i, a.max_dec_len[b], ends, a.E, &tokens[i])) continue;
      slot.accept_num = static_cast<int32_t>(i + 1);
      break;
    }
    const StatusMoves moves =
        advance_slot(&slot, a.is_block_step[b], a.prompt_lens[b], a.max_dec_len[b], a.S, a.L, tokens, ends, a.E);
    for (int64_t i = 0; i < moves.fits; ++i) a.token_ids_all[b * a.L + moves.start + i] = tokens[i];
    if (moves.count > 0) a.draft_tokens[b * a.S] = tokens[moves.count - 1];
    a.step_idx[b] = slot.step_idx;
    a.seq_lens_encoder[b] = slot.enc;
    a.seq_lens_decoder[b] = slot.dec;
    a.seq_lens_this_time[b] = slot.slt;
    a.accept_num[b] = slot.accept_num;
    a.stop_flags[b] = slot.stopped;
    a.has_running[0] = a.has_running[0] || !slot.stopped;
  }
}
SPECDEC_OP(update_model_status, kUnlimited)

// Section 6

// An index row in memory, whatever its alignment.
struct Table {
  char* entries;
  int64_t capacity;

  NgramEntry load(int64_t at) const {
    NgramEntry entry;
    std::memcpy(&entry, entries + at * static_cast<int64_t>(sizeof entry), sizeof entry);
    return entry;
  }
  void store(int64_t at, const NgramEntry& entry) const {
    std::memcpy(entries + at * static_cast<int64_t>(sizeof entry), &entry, sizeof entry);
  }
};

Table table_of(uint8_t* row, int64_t row_width, int64_t min_size, int64_t max_size) {
  return {reinterpret_cast<char*>(row) + sizeof(NgramIndexHeader),
          ngram_index_capacity(row_width, static_cast<int>(min_size), static_cast<int>(max_size))};
}

// The search without an index, `parts` ranges of `after` one by one, each in tiles of 5, merged in a shuffled order.
NgramMatch search(const NgramQuery& query, const SlotText& text, int64_t parts) {
  constexpr int64_t kTile = 5;
  NgramMatch best = no_match();
  const int64_t step = max64((query.text_end - 1 + parts - 1) / parts, 1);
  for (int64_t part = parts - 1; part >= 0; --part) {
    const int64_t low = 1 + part * step, high = min64(low + step, query.text_end);
    NgramMatch found = no_match();
    for (int64_t done = 0; done < high - low; done += kTile) {
      const bool latest = query.policy == MatchPolicy::kLatest;
      const int64_t a = latest ? max64(high - done - kTile, low) : low + done;
      const int64_t b = latest ? high - done : min64(low + done + kTile, high);
      int64_t tokens[kTile + kMaxNgramSize];
      const int64_t first = max64(a - query.most, 0);
      for (int64_t i = first; i < b; ++i) tokens[i - first] = text[i];
      ngram_scan(query, tokens, first, a, b, &found);
    }
    if (preferred(query.policy, found, best)) best = found;
  }
  return best;
}

template <bool kHybrid>
void propose(const NgramMatchArgs& a, int64_t parts) {
  BudgetScan scan{a.token_budget, 0};
  for (int64_t b = 0; b < a.B; ++b) scan.left += a.seq_lens_encoder[b] > 0 || a.seq_lens_decoder[b] > 0 ? 1 : 0;
  for (int64_t b = 0; b < a.B; ++b) {
    int32_t& slt = a.seq_lens_this_time[b];
    const bool prefill = a.seq_lens_encoder[b] > 0, decoding = !prefill && a.seq_lens_decoder[b] > 0;
    int64_t* drafts = a.draft_tokens + b * a.S;
    scan.pass(prefill || decoding);
    if (decoding) {
      const int64_t base = kHybrid ? hybrid_base(slt, a.S) : 1, limit = a.max_dec_len[b], step = a.step_idx[b];
      const int64_t wanted =
          ngram_wanted(base, a.use_draft_token_num, a.draft_token_num[b], a.S, limit, step, a.pre_ids != nullptr);
      int64_t count = 0;
      if (wanted > 0) {
        const ProposeText bounds = propose_text(a, b, base, a.prompt_lens[b], step);
        const SlotText text{bounds.row, bounds.behind, bounds.end};
        const NgramQuery query(a.match_policy, a.max_ngram_size, a.min_ngram_size, bounds.prompt_end, bounds.text_end,
                               a.skip_last, text);
        NgramMatch match = no_match();
        if (query.possible() && a.index != nullptr && !a.skip_last && a.pre_ids == nullptr) {
          Table table = table_of(a.index + b * a.X, a.L, a.min_ngram_size, a.max_ngram_size);
          match = ngram_index_search(table, text, query, bounds.end);
        } else if (query.possible()) {
          match = search(query, text, parts);
        }
        count = ngram_draft_count(query, match, wanted, a.continue_cycles);
        for (int64_t j = 0; j < count; ++j) drafts[base + j] = text[match.after + j % ngram_period(query, match)];
      }
      slt = static_cast<int32_t>(scan.grant(base, count));
    } else if (!prefill) {
      slt = 0;
    }
    scan.used += slt;
    if (!a.pad_to_max || !decoding) continue;
    for (int64_t j = slt; j < a.S; ++j) drafts[j] = drafts[slt - 1];
  }
  for (int64_t b = 0; b < a.B && a.pad_to_max; ++b) {
    if (a.seq_lens_encoder[b] <= 0 && a.seq_lens_decoder[b] > 0) a.seq_lens_this_time[b] = static_cast<int32_t>(a.S);
  }
}

void ngram_match(const NgramMatchArgs& a, const Split& split) { propose<false>(a, split[0]); }
SPECDEC_OP(ngram_match, kUnlimited)

void hybrid_mtp_ngram(const HybridMtpNgramArgs& a, const Split& split) { propose<true>(a, split[0]); }
SPECDEC_OP(hybrid_mtp_ngram, kUnlimited)

void ngram_index_update(const NgramIndexUpdateArgs& a, const Split&) {
  for (int64_t b = 0; b < a.M; ++b) {
    if (a.seq_lens_encoder[b] > 0 || a.seq_lens_decoder[b] <= 0) continue;
    const History bounds = history_bounds(a.L, a.prompt_lens[b], a.step_idx[b]);
    uint8_t* row = a.index + b * a.X;
    Table table = table_of(row, a.L, a.min_ngram_size, a.max_ngram_size);
    int32_t seen;
    std::memcpy(&seen, row, sizeof seen);
    const int64_t* text = a.token_ids_all + b * a.L;
    ngram_index_extend(table, text, seen, bounds.prompt_end, bounds.end, a.min_ngram_size, a.max_ngram_size);
    seen = static_cast<int32_t>(bounds.end);
    std::memcpy(row, &seen, sizeof seen);
  }
}
SPECDEC_OP(ngram_index_update, kUnlimited)

// Section 7

void gather_accepted(const GatherAcceptedArgs& a, const Split&) {
  for (int64_t i = 0; i < a.A_cap; ++i) a.token_ids[i] = a.rows[i] = -1;
  int64_t packed = 0;
  a.cu_batch_token_offset[0] = 0;
  for (int64_t b = 0; b < a.B; ++b) {
    const int64_t count = accepted_share(a.accept_num[b], a.seq_lens_this_time[b], a.S);
    for (int64_t i = 0; i < count && packed + i < a.A_cap; ++i) {
      a.token_ids[packed + i] = a.accept_tokens[b * a.S + i];
      a.rows[packed + i] = accepted_row(a.cu_seqlens_q_output[b], a.seq_lens_encoder[b], i, a.R_cap);
    }
    a.cu_batch_token_offset[b + 1] = static_cast<int32_t>(packed += count);
  }
}
SPECDEC_OP(gather_accepted, kUnlimited)

// Section 8

void schedule_slots(const ScheduleSlotsArgs& a, const Split&) {
  for (int64_t b = 0; b < a.B; ++b) {
    const auto action = static_cast<SlotAction>(a.slot_actions[b]);
    const PrefillChunk chunk = prefill_chunk(action, a.chunk_starts[b], a.chunk_lens[b], a.I_cap, a.L);
    const int64_t* from = a.token_ids_all + b * a.L + chunk.start;
    for (int64_t i = 0; i < chunk.count; ++i) a.input_ids[b * a.I_cap + i] = from[i];
    ScheduledSlot slot{a.step_idx[b],           a.seq_lens_encoder[b], a.seq_lens_decoder[b],
                       a.seq_lens_this_time[b], a.stop_flags[b],       a.is_block_step[b]};
    schedule_slot(&slot, action, chunk, a.chunk_step_idx[b]);
    a.step_idx[b] = slot.step_idx;
    a.seq_lens_encoder[b] = slot.enc;
    a.seq_lens_decoder[b] = slot.dec;
    a.seq_lens_this_time[b] = slot.slt;
    a.stop_flags[b] = slot.stopped;
    a.is_block_step[b] = slot.paused;
  }
}
SPECDEC_OP(schedule_slots, kUnlimited)

// A slot's stop sequences.
struct StopSequences {
  const int64_t* tokens;
  const int32_t* sizes;
  int64_t width;

  int64_t size(int64_t q) const { return clamp64(sizes[q], 0, width); }
  const int64_t* at(int64_t q) const { return tokens + q * width; }
};

void set_stop_sequences(const SetStopSequencesArgs& a, const Split&) {
  for (int64_t b = 0; b < a.M; ++b) {
    const bool ends = a.end_after_stop && a.E > 0;
    const EmittedTokens emitted(a.prompt_lens[b], a.step_idx[b], a.min_dec_len[b], a.accept_num[b], ends, a.L, a.S);
    int64_t* accepted = a.accept_tokens + b * a.S;
    const SlotText text{a.token_ids_all + b * a.L + emitted.prompt_end, accepted, emitted.step};
    const StopSequences sequences{a.stop_seqs + b * a.Q * a.Z, a.stop_seqs_lens + b * a.Q, a.Z};
    const int64_t stop = first_stop(emitted, text, sequences, a.Q);
    if (stop == emitted.count) continue;
    for (int64_t i = stop + 1; i < a.S && !a.keep_tail; ++i) accepted[i] = -1;
    a.accept_num[b] = static_cast<int32_t>(stop + 1);
    a.max_dec_len[b] = emitted.step + stop + 1;
    if (ends) accepted[stop] = a.end_tokens[0];
  }
}
SPECDEC_OP(set_stop_sequences, kUnlimited)

void write_accepted(const WriteAcceptedArgs& a, const Split&) {
  for (int64_t b = 0; b < a.B; ++b) {
    if (a.stop_flags[b] || (a.seq_lens_encoder[b] <= 0 && a.seq_lens_decoder[b] <= 0)) continue;
    const WrittenTokens tokens =
        written_tokens(a.prompt_lens[b], a.step_idx[b], a.accept_num[b], a.last_index, a.S, a.L);
    int64_t* row = a.token_ids_all + b * a.L;
    for (int64_t i = tokens.first; i < tokens.end; ++i) row[tokens.start + i] = a.accept_tokens[b * a.S + i];
  }
}
SPECDEC_OP(write_accepted, kUnlimited)

void limit_thinking(const LimitThinkingArgs& a, const Split&) {
  const int64_t *ends = a.end_tokens, *inject = a.inject_token_ids;
  for (int64_t b = 0; b < a.M; ++b) {
    const ThinkingLimits limits = {a.think_end_id, a.J, a.E, a.max_think_lens[b], a.max_reply_lens[b], a.fastdeploy};
    const int64_t count = clamp64(a.accept_num[b], 0, a.S);
    if (a.stop_flags[b] || !limits.any() || count == 0) continue;
    int64_t* tokens = a.accept_tokens + b * a.S;
    const Replacement replaced = limit_thinking_slot(a.limit_status + b, a.max_reply_lens + b, limits, a.step_idx[b],
                                                     count, tokens, ends, inject);
    if (replaced.at == count) continue;
    tokens[replaced.at] = replaced.token;
    for (int64_t i = replaced.at + 1; i < a.S && !a.keep_tail; ++i) tokens[i] = -1;
    a.accept_num[b] = static_cast<int32_t>(replaced.at + 1);
  }
}
SPECDEC_OP(limit_thinking, kUnlimited)

// Section 7

void insert_first_token(const InsertFirstTokenArgs& a, const Split&) {
  int64_t next = 0, place = 0;
  for (int64_t b = 0; b < a.B; ++b) {
    const DraftShare share = draft_share(a.seq_lens_this_time[b], a.seq_lens_encoder[b], a.R_cap);
    if (share.has_first() && place < a.D_cap) a.draft_token_ids[place] = a.accept_tokens[b * a.S];
    const DraftRows rows = draft_rows(share, next, place, a.R_cap, a.D_cap);
    for (int64_t i = 0; i < rows.count; ++i) a.draft_token_ids[rows.place + i] = a.next_tokens[rows.source + i];
    next += share.next;
    place += share.batch;
  }
}
SPECDEC_OP(insert_first_token, kUnlimited)

// Section 10

// A word at a time, from column -7 on, as where a row begins inside a vector.
void apply_token_bitmask(const ApplyTokenBitmaskArgs& a, const Split&) {
  with_float_type(a.logits_type, [&](auto type) {
    using L = decltype(type);
    for (int64_t r = 0; r < a.R_cap; ++r) {
      const int64_t mask = mask_of_row(a.bitmask_rows, a.R_cap, a.U, r);
      if (mask < 0) continue;
      auto* row = static_cast<typename L::Bits*>(a.logits) + r * a.V;
      const int32_t* words = a.bitmask + mask * a.Y;
      for (int64_t first = -7; first < a.V; first += 32) {
        const uint32_t forbidden =
            forbidden_tokens(words, mask_size(a.vocab_size, a.Y), a.first_token + first) & columns_of_row(first, a.V);
        for (int i = 0; i < 32; ++i) {
          if ((forbidden >> i & 1u) != 0) row[first + i] = L::narrow(-INFINITY);
        }
      }
    }
  });
}
SPECDEC_OP(apply_token_bitmask, kUnlimited)

void truncate_drafts(const TruncateDraftsArgs& a, const Split&) {
  for (int64_t b = 0; b < a.B; ++b) {
    const int64_t drafts = judged_drafts(a.seq_lens_this_time[b], a.seq_lens_encoder[b], a.S);
    for (int64_t i = 0; i < drafts; ++i) {
      const int64_t mask = mask_of_row(a.bitmask_rows, a.R_cap, a.U, a.cu_seqlens_q_output[b] + i);
      if (mask < 0) continue;
      const int32_t* words = a.bitmask + mask * a.Y;
      if (mask_allows(words, mask_size(a.vocab_size, a.Y), a.draft_tokens[b * a.S + i + 1])) continue;
      a.seq_lens_this_time[b] = static_cast<int32_t>(i + 1);
      break;
    }
  }
}
SPECDEC_OP(truncate_drafts, kUnlimited)

}  // namespace
}  // namespace specdec::serial
