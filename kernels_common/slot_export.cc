// The rules of one slot, run serially over a batch: whole ops, for the tests that compare them with the reference. The
// arguments are those of the ops, operands and attributes in OpSpec order; `parts` splits bulk work, as kernels do.
#include <tvm/ffi/function.h>

#include <cstring>

#include "specdec/ngram.h"
#include "specdec/ngram_index.h"
#include "specdec/schedule.h"
#include "specdec/status.h"
#include "specdec/step_index.h"
#include "specdec/verify.h"
#include "specdec/verify_lanes.h"
#include "specdec_ffi/operands.h"

namespace {

using specdec::ffi::Operands;
using specdec::ffi::Optional;
using specdec::ffi::TensorView;
using namespace specdec;

// Sections 1 and 2

void prepare_inputs(TensorView input_ids, TensorView draft_tokens, TensorView seq_lens_this_time,
                    TensorView seq_lens_encoder, TensorView seq_lens_decoder, TensorView ids_remove_padding,
                    TensorView batch_id_per_token, TensorView cu_seqlens_q, TensorView cu_seqlens_k,
                    TensorView cu_seqlens_q_output, TensorView batch_id_per_token_output, TensorView num_tokens) {
  const Operands op("prepare_inputs");
  const int64_t m = op.extent(draft_tokens, 0), s = op.extent(draft_tokens, 1), width = op.extent(input_ids, 1);
  const int64_t slots = op.extent(seq_lens_this_time, 0), t_cap = op.extent(ids_remove_padding, 0);
  const int64_t r_cap = op.extent(batch_id_per_token_output, 0);
  const auto* input = op.data<int64_t>("input_ids", input_ids, {m, width});
  const auto* drafts = op.data<int64_t>("draft_tokens", draft_tokens, {m, s});
  const auto* slt = op.data<int32_t>("seq_lens_this_time", seq_lens_this_time, {slots});
  const auto* enc = op.data<int32_t>("seq_lens_encoder", seq_lens_encoder, {m});
  const auto* dec = op.data<int32_t>("seq_lens_decoder", seq_lens_decoder, {m});
  auto* ids = op.data<int64_t>("ids_remove_padding", ids_remove_padding, {t_cap});
  auto* slot_of = op.data<int32_t>("batch_id_per_token", batch_id_per_token, {t_cap});
  auto* q = op.data<int32_t>("cu_seqlens_q", cu_seqlens_q, {slots + 1});
  auto* k = op.data<int32_t>("cu_seqlens_k", cu_seqlens_k, {slots + 1});
  auto* r = op.data<int32_t>("cu_seqlens_q_output", cu_seqlens_q_output, {slots + 1});
  auto* slot_of_row = op.data<int32_t>("batch_id_per_token_output", batch_id_per_token_output, {r_cap});
  auto* totals = op.data<int32_t>("num_tokens", num_tokens, {2});
  for (int64_t i = 0; i < t_cap; ++i) ids[i] = 0, slot_of[i] = -1;
  for (int64_t i = 0; i < r_cap; ++i) slot_of_row[i] = -1;
  int64_t tokens = 0, keys = 0, rows = 0;
  q[0] = k[0] = r[0] = 0;
  for (int64_t b = 0; b < slots; ++b) {
    const StepShare share = step_share(slt[b], enc[b], dec[b], width, s);
    const int64_t* source = enc[b] > 0 ? input + b * width : drafts + b * s;
    for (int64_t i = 0; i < share.tokens && tokens + i < t_cap; ++i) {
      ids[tokens + i] = source[i];
      slot_of[tokens + i] = static_cast<int32_t>(b);
    }
    for (int64_t i = rows; i < rows + share.rows && i < r_cap; ++i) slot_of_row[i] = static_cast<int32_t>(b);
    q[b + 1] = saturate32(tokens += share.tokens);
    k[b + 1] = saturate32(keys += share.keys);
    r[b + 1] = saturate32(rows += share.rows);
  }
  totals[0] = saturate32(tokens);
  totals[1] = saturate32(rows);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(prepare_inputs, prepare_inputs)

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

void verify_draft_tokens(TensorView draft_tokens, Optional<TensorView> target_tokens,
                         Optional<TensorView> candidate_ids, Optional<TensorView> candidate_scores,
                         Optional<TensorView> candidate_lens, Optional<TensorView> top_p,
                         Optional<TensorView> target_probs, Optional<TensorView> draft_probs, TensorView seed,
                         TensorView prompt_lens, TensorView step_idx, TensorView max_dec_len, TensorView stop_flags,
                         TensorView is_block_step, TensorView seq_lens_encoder, TensorView seq_lens_decoder,
                         TensorView seq_lens_this_time, TensorView cu_seqlens_q_output, TensorView reasoning_status,
                         TensorView end_tokens, TensorView accept_tokens, TensorView accept_num, int64_t strategy,
                         int64_t verify_window, int64_t accept_policy, int64_t end_at_limit, int64_t parts) {
  const Operands op("verify_draft_tokens");
  const int64_t m = op.extent(draft_tokens, 0), s = op.extent(draft_tokens, 1);
  const int64_t slots = op.extent(seq_lens_this_time, 0), end_count = op.extent(end_tokens, 0);
  const TensorView& judging = target_tokens.has_value()  ? target_tokens.value()
                              : target_probs.has_value() ? target_probs.value()
                                                         : candidate_ids.value();
  const int64_t rows = op.extent(judging, 0), width = op.extent(judging, 1);
  const auto* drafts = op.data<int64_t>("draft_tokens", draft_tokens, {m, s});
  const auto* tokens = op.data<int64_t>("target_tokens", target_tokens, {rows});
  const auto* ids = op.data<int64_t>("candidate_ids", candidate_ids, {rows, width});
  const auto* scores = op.data<float>("candidate_scores", candidate_scores, {rows, width});
  const auto* lens = op.data<int32_t>("candidate_lens", candidate_lens, {rows});
  const auto* nucleus = op.data<float>("top_p", top_p, {m});
  const auto* probs = op.data<float>("target_probs", target_probs, {rows, width});
  const auto* all_draft_probs = op.data<float>("draft_probs", draft_probs, {m, s - 1, width});
  const auto* seeds = op.data<int64_t>("seed", seed, {m});
  const auto* prompts = op.data<int64_t>("prompt_lens", prompt_lens, {m});
  const auto* steps = op.data<int64_t>("step_idx", step_idx, {m});
  const auto* limits = op.data<int64_t>("max_dec_len", max_dec_len, {m});
  const auto* stopped = op.data<bool>("stop_flags", stop_flags, {m});
  const auto* paused = op.data<bool>("is_block_step", is_block_step, {m});
  const auto* enc = op.data<int32_t>("seq_lens_encoder", seq_lens_encoder, {m});
  const auto* dec = op.data<int32_t>("seq_lens_decoder", seq_lens_decoder, {m});
  const auto* slt = op.data<int32_t>("seq_lens_this_time", seq_lens_this_time, {slots});
  const auto* offsets = op.data<int32_t>("cu_seqlens_q_output", cu_seqlens_q_output, {slots + 1});
  const auto* reasoning = op.data<int32_t>("reasoning_status", reasoning_status, {m});
  Ends ends = op.data<int64_t>("end_tokens", end_tokens, {end_count});
  auto* accepted = op.data<int64_t>("accept_tokens", accept_tokens, {m, s});
  auto* counts = op.data<int32_t>("accept_num", accept_num, {m});
  const auto policy = static_cast<AcceptPolicy>(accept_policy);

  for (int64_t i = 0; i < m * s; ++i) accepted[i] = -1;
  for (int64_t b = 0; b < m; ++b) counts[b] = 0;
  for (int64_t b = 0; b < slots && rows > 0; ++b) {
    const VerifyState state{seeds[b], prompts[b], steps[b],   limits[b],    enc[b],    dec[b],
                            slt[b],   offsets[b], reasoning[b], stopped[b], paused[b]};
    if (!verify_emits(state)) continue;
    const VerifySlot slot(state, s, rows);
    Row sink{accepted + b * s};
    const EmitRule rule = {end_count, slot.limit, policy == AcceptPolicy::kAcceptAll, end_at_limit != 0};
    SlotEmission out(ends, rule, sink);
    const int64_t* slot_drafts = drafts + b * s + 1;
    const auto run = [&](auto judge) {
      if (parts == 0) {
        emit_by_lanes(slot, policy, votes_of(slot, judge, slot_drafts), slot_drafts, ends, rule, verify_window, out);
      } else {
        verify_drafts(slot, policy, judge, slot_drafts, out);
      }
      if (!out.stopped()) out.emit(judge.token(slot, out.count()));
    };
    switch (static_cast<Strategy>(strategy)) {
      case Strategy::kGreedy:
      case Strategy::kTargetMatch:
        run(JudgeByToken<const int64_t*>{tokens});
        break;
      case Strategy::kTopP:
        if (parts == 0 && width <= kLaneWidth) {
          const auto list = [&](int64_t i) {
            const int64_t row = slot.row(i);
            return LaneCandidates<kLaneWidth>(ids, scores, row * width, width, lens[row]);
          };
          uint32_t best = 0;
          for (int64_t i = 0; i < slot.drafts; ++i) best |= uint32_t{list(i).best_is(slot_drafts[i])} << i;
          const auto vote = [&](int64_t i, LaneVotes* votes) {
            const bool window =
                list(i).second_is(slot_drafts[i]) && window_follows(best, i, verify_window, slot.drafts);
            votes->alone |= uint32_t{list(i).contain(slot_drafts[i])} << i;
            votes->window |= uint32_t{window} << i;
          };
          emit_by_lanes(slot, policy, vote, slot_drafts, ends, rule, verify_window, out);
          const int64_t i = out.count();
          if (!out.stopped()) out.emit(list(i).draw(nucleus[b], slot.random(i, Purpose::kCandidate).u64()));
          break;
        }
        run(JudgeByCandidates<const int64_t*, const float*, const int32_t*>{ids, scores, lens, width, verify_window,
                                                                            nucleus[b]});
        break;
      case Strategy::kRejection: {
        const float* q = all_draft_probs == nullptr ? nullptr : all_draft_probs + b * (s - 1) * width;
        JudgeByProbs<const float*, const float*> judge{probs, q == nullptr ? nullptr : &q, width};
        const bool rejected =
            parts == 0 ? emit_by_lanes(slot, policy, votes_of(slot, judge, slot_drafts), slot_drafts, ends, rule,
                                       verify_window, out)
                       : verify_drafts(slot, policy, judge, slot_drafts, out);
        if (out.stopped()) break;
        const int64_t i = out.count(), step = max64(width / max64(parts, 1), 1);
        const auto tile = [&](int64_t first) {
          return ResidualTile{probs + slot.row(i) * width + first,
                              rejected && q != nullptr ? q + i * width + first : nullptr, first,
                              min64(step, width - first), rejected && q == nullptr ? slot_drafts[i] : -1};
        };
        ResidualSum sum = no_residual();
        for (int64_t first = (width - 1) / step * step; first >= 0; first -= step) {  // any order: here from the end
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
    counts[b] = static_cast<int32_t>(out.count());
  }
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(verify_draft_tokens, verify_draft_tokens)

// Section 5

void update_model_status(TensorView seq_lens_encoder, TensorView seq_lens_decoder, TensorView seq_lens_this_time,
                         TensorView stop_flags, TensorView step_idx, TensorView token_ids_all, TensorView draft_tokens,
                         TensorView accept_tokens, TensorView accept_num, TensorView has_running,
                         TensorView is_block_step, TensorView prompt_lens, TensorView end_tokens,
                         TensorView max_dec_len) {
  const Operands op("update_model_status");
  const int64_t m = op.extent(draft_tokens, 0), s = op.extent(draft_tokens, 1), l = op.extent(token_ids_all, 1);
  const int64_t slots = op.extent(seq_lens_this_time, 0), end_count = op.extent(end_tokens, 0);
  auto* enc = op.data<int32_t>("seq_lens_encoder", seq_lens_encoder, {m});
  auto* dec = op.data<int32_t>("seq_lens_decoder", seq_lens_decoder, {m});
  auto* slt = op.data<int32_t>("seq_lens_this_time", seq_lens_this_time, {slots});
  auto* stopped = op.data<bool>("stop_flags", stop_flags, {m});
  auto* steps = op.data<int64_t>("step_idx", step_idx, {m});
  auto* history = op.data<int64_t>("token_ids_all", token_ids_all, {m, l});
  auto* drafts = op.data<int64_t>("draft_tokens", draft_tokens, {m, s});
  const auto* accepted = op.data<int64_t>("accept_tokens", accept_tokens, {m, s});
  auto* counts = op.data<int32_t>("accept_num", accept_num, {m});
  auto* running = op.data<bool>("has_running", has_running, {1});
  const auto* paused = op.data<bool>("is_block_step", is_block_step, {m});
  const auto* prompts = op.data<int64_t>("prompt_lens", prompt_lens, {m});
  Ends ends = op.data<int64_t>("end_tokens", end_tokens, {end_count});
  const auto* limits = op.data<int64_t>("max_dec_len", max_dec_len, {m});
  running[0] = false;
  for (int64_t b = 0; b < slots; ++b) {
    SlotStatus slot{steps[b], enc[b], dec[b], slt[b], counts[b], stopped[b]};
    const int64_t* tokens = accepted + b * s;
    const StatusMoves moves =
        advance_slot(&slot, paused[b], prompts[b], limits[b], s, l, tokens, ends, end_count);
    for (int64_t i = 0; i < moves.fits; ++i) history[b * l + moves.start + i] = tokens[i];
    if (moves.count > 0) drafts[b * s] = tokens[moves.count - 1];
    steps[b] = slot.step_idx;
    enc[b] = slot.enc;
    dec[b] = slot.dec;
    slt[b] = slot.slt;
    counts[b] = slot.accept_num;
    stopped[b] = slot.stopped;
    running[0] |= !slot.stopped;
  }
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(update_model_status, update_model_status)

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
void propose(TensorView token_ids_all, TensorView prompt_lens, TensorView step_idx, TensorView draft_token_num,
             TensorView seq_lens_encoder, TensorView seq_lens_decoder, TensorView max_dec_len, TensorView draft_tokens,
             TensorView seq_lens_this_time, Optional<TensorView> index, int64_t max_ngram_size, int64_t min_ngram_size,
             int64_t token_budget, int64_t match_policy, int64_t pad_to_max, int64_t parts) {
  const Operands op(kHybrid ? "hybrid_mtp_ngram" : "ngram_match");
  const int64_t m = op.extent(draft_tokens, 0), s = op.extent(draft_tokens, 1), l = op.extent(token_ids_all, 1);
  const int64_t slots = op.extent(seq_lens_this_time, 0);
  const auto* history = op.data<int64_t>("token_ids_all", token_ids_all, {m, l});
  const auto* prompts = op.data<int64_t>("prompt_lens", prompt_lens, {m});
  const auto* steps = op.data<int64_t>("step_idx", step_idx, {m});
  const auto* wishes = op.data<int32_t>("draft_token_num", draft_token_num, {m});
  const auto* enc = op.data<int32_t>("seq_lens_encoder", seq_lens_encoder, {m});
  const auto* dec = op.data<int32_t>("seq_lens_decoder", seq_lens_decoder, {m});
  const auto* limits = op.data<int64_t>("max_dec_len", max_dec_len, {m});
  auto* drafts = op.data<int64_t>("draft_tokens", draft_tokens, {m, s});
  auto* slt = op.data<int32_t>("seq_lens_this_time", seq_lens_this_time, {slots});
  const int largest = static_cast<int>(max_ngram_size), smallest = static_cast<int>(min_ngram_size);
  const int64_t row_bytes = ngram_index_bytes(l, smallest, largest);
  auto* rows = op.data<uint8_t>("index", index, {m, row_bytes});
  const auto policy = static_cast<MatchPolicy>(match_policy);
  BudgetScan scan{token_budget, 0};
  for (int64_t b = 0; b < slots; ++b) scan.left += enc[b] > 0 || dec[b] > 0 ? 1 : 0;
  for (int64_t b = 0; b < slots; ++b) {
    const bool decoding = enc[b] <= 0 && dec[b] > 0;
    scan.pass(enc[b] > 0 || dec[b] > 0);
    if (decoding) {
      const int64_t base = kHybrid ? hybrid_base(slt[b], s) : 1;
      const int64_t wanted = kHybrid ? hybrid_wanted(base, s, limits[b], steps[b])
                                     : ngram_wanted(wishes[b], s, limits[b], steps[b]);
      int64_t count = 0;
      if (wanted > 0) {
        const History bounds = history_bounds(l, prompts[b], steps[b]);
        const SlotText text{history + b * l, drafts + b * s + 1, bounds.end};
        const NgramQuery query(policy, largest, smallest, bounds.prompt_end, bounds.end + base - 1, text);
        NgramMatch match = no_match();
        if (query.possible() && rows != nullptr) {
          Table table = table_of(rows + b * row_bytes, l, smallest, largest);
          match = ngram_index_search(table, text, query, bounds.end);
        } else if (query.possible()) {
          match = search(query, text, parts);
        }
        if (match.size > 0) count = min64(wanted, query.haystack_stop(match.after) - match.after);
        for (int64_t j = 0; j < count; ++j) drafts[b * s + base + j] = text[match.after + j];
      }
      slt[b] = static_cast<int32_t>(scan.grant(base, count));
    } else if (enc[b] <= 0) {
      slt[b] = 0;
    }
    scan.used += slt[b];
    if (pad_to_max == 0 || !decoding) continue;
    const int64_t valid = slt[b];
    for (int64_t j = valid; j < s; ++j) drafts[b * s + j] = drafts[b * s + valid - 1];
  }
  for (int64_t b = 0; b < slots && pad_to_max != 0; ++b) {
    if (enc[b] <= 0 && dec[b] > 0) slt[b] = static_cast<int32_t>(s);
  }
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ngram_match, propose<false>)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(hybrid_mtp_ngram, propose<true>)

void ngram_index_update(TensorView index, TensorView token_ids_all, TensorView prompt_lens, TensorView step_idx,
                        TensorView seq_lens_encoder, TensorView seq_lens_decoder, int64_t max_ngram_size,
                        int64_t min_ngram_size) {
  const Operands op("ngram_index_update");
  const int64_t m = op.extent(token_ids_all, 0), l = op.extent(token_ids_all, 1);
  const int largest = static_cast<int>(max_ngram_size), smallest = static_cast<int>(min_ngram_size);
  const int64_t row_bytes = ngram_index_bytes(l, smallest, largest);
  auto* rows = op.data<uint8_t>("index", index, {m, row_bytes});
  const auto* history = op.data<int64_t>("token_ids_all", token_ids_all, {m, l});
  const auto* prompts = op.data<int64_t>("prompt_lens", prompt_lens, {m});
  const auto* steps = op.data<int64_t>("step_idx", step_idx, {m});
  const auto* enc = op.data<int32_t>("seq_lens_encoder", seq_lens_encoder, {m});
  const auto* dec = op.data<int32_t>("seq_lens_decoder", seq_lens_decoder, {m});
  for (int64_t b = 0; b < m; ++b) {
    if (enc[b] > 0 || dec[b] <= 0) continue;
    const History bounds = history_bounds(l, prompts[b], steps[b]);
    uint8_t* row = rows + b * row_bytes;
    Table table = table_of(row, l, smallest, largest);
    int32_t seen;
    std::memcpy(&seen, row, sizeof seen);
    const int64_t* text = history + b * l;
    ngram_index_extend(table, text, seen, bounds.prompt_end, bounds.end, smallest, largest);
    seen = static_cast<int32_t>(bounds.end);
    std::memcpy(row, &seen, sizeof seen);
  }
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ngram_index_update, ngram_index_update)

// Section 7

void gather_accepted(TensorView logits, TensorView accept_tokens, TensorView accept_num,
                     TensorView cu_seqlens_q_output, TensorView seq_lens_encoder, TensorView seq_lens_this_time,
                     TensorView token_ids, TensorView rows, TensorView cu_batch_token_offset) {
  const Operands op("gather_accepted");
  const int64_t r_cap = op.extent(logits, 0), m = op.extent(accept_tokens, 0), s = op.extent(accept_tokens, 1);
  const int64_t slots = op.extent(seq_lens_this_time, 0), a_cap = op.extent(token_ids, 0);
  const auto* tokens = op.data<int64_t>("accept_tokens", accept_tokens, {m, s});
  const auto* counts = op.data<int32_t>("accept_num", accept_num, {m});
  const auto* first = op.data<int32_t>("cu_seqlens_q_output", cu_seqlens_q_output, {slots + 1});
  const auto* enc = op.data<int32_t>("seq_lens_encoder", seq_lens_encoder, {m});
  const auto* slt = op.data<int32_t>("seq_lens_this_time", seq_lens_this_time, {slots});
  auto* ids = op.data<int64_t>("token_ids", token_ids, {a_cap});
  auto* row_of = op.data<int32_t>("rows", rows, {a_cap});
  auto* offsets = op.data<int32_t>("cu_batch_token_offset", cu_batch_token_offset, {slots + 1});
  for (int64_t a = 0; a < a_cap; ++a) ids[a] = row_of[a] = -1;
  int64_t a = 0;
  offsets[0] = 0;
  for (int64_t b = 0; b < slots; ++b) {
    const int64_t count = accepted_share(counts[b], slt[b], s);
    for (int64_t i = 0; i < count && a + i < a_cap; ++i) {
      ids[a + i] = tokens[b * s + i];
      row_of[a + i] = accepted_row(first[b], enc[b], i, r_cap);
    }
    offsets[b + 1] = static_cast<int32_t>(a += count);
  }
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gather_accepted, gather_accepted)

// Section 8

void schedule_slots(TensorView slot_actions, TensorView chunk_lens, TensorView chunk_starts, TensorView chunk_step_idx,
                    TensorView token_ids_all, TensorView seq_lens_encoder, TensorView seq_lens_decoder,
                    TensorView seq_lens_this_time, TensorView step_idx, TensorView stop_flags, TensorView is_block_step,
                    TensorView input_ids) {
  const Operands op("schedule_slots");
  const int64_t m = op.extent(token_ids_all, 0), l = op.extent(token_ids_all, 1), width = op.extent(input_ids, 1);
  const int64_t slots = op.extent(seq_lens_this_time, 0);
  const auto* actions = op.data<int32_t>("slot_actions", slot_actions, {m});
  const auto* lens = op.data<int32_t>("chunk_lens", chunk_lens, {m});
  const auto* starts = op.data<int32_t>("chunk_starts", chunk_starts, {m});
  const auto* chunk_steps = op.data<int64_t>("chunk_step_idx", chunk_step_idx, {m});
  const auto* history = op.data<int64_t>("token_ids_all", token_ids_all, {m, l});
  auto* enc = op.data<int32_t>("seq_lens_encoder", seq_lens_encoder, {m});
  auto* dec = op.data<int32_t>("seq_lens_decoder", seq_lens_decoder, {m});
  auto* slt = op.data<int32_t>("seq_lens_this_time", seq_lens_this_time, {slots});
  auto* steps = op.data<int64_t>("step_idx", step_idx, {m});
  auto* stopped = op.data<bool>("stop_flags", stop_flags, {m});
  auto* paused = op.data<bool>("is_block_step", is_block_step, {m});
  auto* input = op.data<int64_t>("input_ids", input_ids, {m, width});
  for (int64_t b = 0; b < slots; ++b) {
    const auto action = static_cast<SlotAction>(actions[b]);
    const PrefillChunk chunk = prefill_chunk(action, starts[b], lens[b], width, l);
    for (int64_t i = 0; i < chunk.count; ++i) input[b * width + i] = history[b * l + chunk.start + i];
    ScheduledSlot slot{steps[b], enc[b], dec[b], slt[b], stopped[b], paused[b]};
    schedule_slot(&slot, action, chunk, chunk_steps[b]);
    steps[b] = slot.step_idx;
    enc[b] = slot.enc;
    dec[b] = slot.dec;
    slt[b] = slot.slt;
    stopped[b] = slot.stopped;
    paused[b] = slot.paused;
  }
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(schedule_slots, schedule_slots)

// A slot's stop sequences.
struct StopSequences {
  const int64_t* tokens;
  const int32_t* sizes;
  int64_t width;

  int64_t size(int64_t q) const { return clamp64(sizes[q], 0, width); }
  const int64_t* at(int64_t q) const { return tokens + q * width; }
};

void set_stop_sequences(TensorView token_ids_all, TensorView prompt_lens, TensorView step_idx, TensorView min_dec_len,
                        TensorView stop_seqs, TensorView stop_seqs_lens, TensorView accept_tokens,
                        TensorView accept_num, TensorView max_dec_len) {
  const Operands op("set_stop_sequences");
  const int64_t m = op.extent(token_ids_all, 0), l = op.extent(token_ids_all, 1), s = op.extent(accept_tokens, 1);
  const int64_t many = op.extent(stop_seqs, 1), width = op.extent(stop_seqs, 2);
  const auto* history = op.data<int64_t>("token_ids_all", token_ids_all, {m, l});
  const auto* prompts = op.data<int64_t>("prompt_lens", prompt_lens, {m});
  const auto* steps = op.data<int64_t>("step_idx", step_idx, {m});
  const auto* least = op.data<int64_t>("min_dec_len", min_dec_len, {m});
  const auto* tokens = op.data<int64_t>("stop_seqs", stop_seqs, {m, many, width});
  const auto* sizes = op.data<int32_t>("stop_seqs_lens", stop_seqs_lens, {m, many});
  auto* accepted = op.data<int64_t>("accept_tokens", accept_tokens, {m, s});
  auto* counts = op.data<int32_t>("accept_num", accept_num, {m});
  auto* limits = op.data<int64_t>("max_dec_len", max_dec_len, {m});
  for (int64_t b = 0; b < m; ++b) {
    const EmittedTokens emitted(prompts[b], steps[b], least[b], counts[b], l, s);
    const SlotText text{history + b * l + emitted.prompt_end, accepted + b * s, emitted.step};
    const StopSequences sequences{tokens + b * many * width, sizes + b * many, width};
    const int64_t stop = first_stop(emitted, text, sequences, many);
    if (stop == emitted.count) continue;
    for (int64_t i = stop + 1; i < s; ++i) accepted[b * s + i] = -1;
    counts[b] = static_cast<int32_t>(stop + 1);
    limits[b] = emitted.generated(stop);
  }
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(set_stop_sequences, set_stop_sequences)

}  // namespace
