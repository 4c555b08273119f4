// Verification of one slot (contract, section 4). Bulk data can be anything indexed with an int64: a pointer on the
// host, a reader that streams tiles on a device with local memory.
#pragma once

#include "specdec/contract.h"
#include "specdec/draw.h"
#include "specdec/flag.h"
#include "specdec/integers.h"
#include "specdec/mass.h"
#include "specdec/philox.h"

namespace specdec {

// The state of a slot as the tensors hold it: of each of these operands, one value.
// clang-format off
#define SPECDEC_VERIFY_STATE(X) \
  X(seed) X(prompt_lens) X(step_idx) X(max_dec_len) \
  X(seq_lens_encoder) X(seq_lens_decoder) X(seq_lens_this_time) \
  X(cu_seqlens_q_output) X(reasoning_status) \
  X(stop_flags) X(is_block_step)
// clang-format on

struct VerifyState {
  int64_t seed, prompt_lens, step_idx, max_dec_len;
  int32_t seq_lens_encoder, seq_lens_decoder, seq_lens_this_time, cu_seqlens_q_output, reasoning_status;
  Flag stop_flags, is_block_step;
};

// Of slot b, from memory that can be read by address.
template <typename Args>
SPECDEC_HD VerifyState load_state(const Args& a, int64_t b) {
  VerifyState state;
#define SPECDEC_LOAD(field) state.field = a.field[b];
  SPECDEC_VERIFY_STATE(SPECDEC_LOAD)
#undef SPECDEC_LOAD
  return state;
}

// Whether the slot emits anything at all.
SPECDEC_HD bool verify_emits(const VerifyState& state) {
  const int32_t enc = state.seq_lens_encoder;
  const bool unfinished_prompt = enc > 0 && int64_t{state.seq_lens_decoder} + enc < state.prompt_lens;
  return !state.stop_flags && !state.is_block_step && state.seq_lens_this_time > 0 && !unfinished_prompt;
}

// One slot's drafts and the rows that verify them; positions count from the base token.
struct VerifySlot {
  int64_t drafts;  // how many
  int64_t first_row, last_row;
  int64_t seed, length;  // of prompt and generated tokens
  int64_t limit;         // tokens that may still be generated
  bool tests_drafts;

  SPECDEC_HD VerifySlot(const VerifyState& state, int64_t draft_width, int64_t row_capacity)
      : drafts(min64(state.seq_lens_this_time, draft_width) - 1),
        first_row(state.cu_seqlens_q_output),
        last_row(row_capacity - 1),
        seed(state.seed),
        length(wrap_add(state.prompt_lens, state.step_idx)),
        limit(saturating_sub(state.max_dec_len, state.step_idx)),
        tests_drafts(state.seq_lens_encoder <= 0 && state.reasoning_status != 1) {}

  SPECDEC_HD int64_t row(int64_t i) const { return clamp64(first_row + i, 0, last_row); }
  SPECDEC_HD PhiloxWords random(int64_t i, Purpose purpose) const {
    return philox_words(seed, wrap_add(length, i), purpose);
  }
};

// Whether a slot stops, and its last token. `count` tokens are emitted, including that one.
struct EmitRule {
  int64_t end_count, limit;
  bool ignore_end, end_at_limit;

  SPECDEC_HD bool at_limit(int64_t count) const { return count >= limit; }
  SPECDEC_HD bool stops(int64_t count, bool is_end) const { return (is_end && !ignore_end) || at_limit(count); }
  SPECDEC_HD bool replaces(int64_t count, bool is_end) const {
    return at_limit(count) && end_at_limit && !is_end && end_count > 0;
  }
};

// The tokens a slot emits, one after the other. `sink.append(token)` takes them in order.
template <typename EndTokens, typename Sink>
class Emission {
 public:
  SPECDEC_HD Emission(EndTokens& end_tokens, const EmitRule& rule, Sink& sink)
      : end_tokens_(end_tokens), rule_(rule), sink_(sink) {}
  SPECDEC_HD Emission(EndTokens& end_tokens, int64_t end_count, int64_t limit, bool ignore_end, bool end_at_limit,
                      Sink& sink)
      : Emission(end_tokens, {end_count, limit, ignore_end, end_at_limit}, sink) {}

  SPECDEC_HD void emit(int64_t token) {
    if (stopped_) return;
    ++count_;
    bool is_end = false;
    for (int64_t e = 0; e < rule_.end_count && !is_end; ++e) is_end = end_tokens_[e] == token;
    stopped_ = rule_.stops(count_, is_end);
    sink_.append(rule_.replaces(count_, is_end) ? end_tokens_[0] : token);
  }

  SPECDEC_HD int64_t count() const { return count_; }
  SPECDEC_HD bool stopped() const { return stopped_; }

 private:
  EndTokens& end_tokens_;
  const EmitRule rule_;
  Sink& sink_;
  int64_t count_ = 0;
  bool stopped_ = false;
};

// Phase 1: emit the drafts that pass; whether it ended with a draft that was rejected. `drafts[i]` is the draft at i;
// `verifier.accepted(slot, i, drafts)` says how many positions from i on pass.
template <typename Verifier, typename Drafts, typename Out>
SPECDEC_HD bool verify_drafts(const VerifySlot& slot, AcceptPolicy policy, Verifier& verifier, Drafts& drafts,
                              Out& out) {
  if (policy == AcceptPolicy::kRejectAll || !slot.tests_drafts) return false;
  while (out.count() < slot.drafts && !out.stopped()) {
    const int64_t i = out.count();
    const int64_t passing = policy == AcceptPolicy::kAcceptAll ? 1 : verifier.accepted(slot, i, drafts);
    if (passing == 0) return true;
    for (int64_t j = i; j < i + passing; ++j) out.emit(drafts[j]);
  }
  return false;
}

// GREEDY and TARGET_MATCH: by the target model's token of each row.
template <typename Tokens>
struct VerifierByToken {
  Tokens& target_tokens;

  template <typename Drafts>
  SPECDEC_HD int64_t accepted(const VerifySlot& slot, int64_t i, Drafts& drafts) {
    return target_tokens[slot.row(i)] == drafts[i] ? 1 : 0;
  }
  SPECDEC_HD int64_t token(const VerifySlot& slot, int64_t i) { return target_tokens[slot.row(i)]; }
};

// TOPP: by the candidate list of each row. `ids` and `scores` are [rows, width], flat.
template <typename Ids, typename Scores, typename Lens>
struct VerifierByCandidates {
  Ids& ids;
  Scores& scores;
  Lens& lens;
  int64_t width, window;
  float top_p;

  template <typename Drafts>
  SPECDEC_HD int64_t accepted(const VerifySlot& slot, int64_t i, Drafts& drafts) {
    const int64_t row = slot.row(i), count = clamp64(lens[row], 1, width), draft = drafts[i];
    for (int64_t c = 0; c < count; ++c) {
      if (weighed(row, c) && ids[row * width + c] == draft) return 1;
    }
    if (width < 2 || ids[row * width + 1] != draft || !weighed(row, 1) || window > slot.drafts - 1 - i) return 0;
    for (int64_t j = i + 1; j <= i + window; ++j) {
      if (ids[slot.row(j) * width] != drafts[j]) return 0;
    }
    return 1 + window;
  }

  SPECDEC_HD bool weighed(int64_t row, int64_t c) { return prob_mass(scores[row * width + c]) != 0; }

  SPECDEC_HD int64_t token(const VerifySlot& slot, int64_t i) {
    const int64_t row = slot.row(i), count = clamp64(lens[row], 1, width), first = row * width;
    uint64_t sum = 0;
    for (int64_t c = 0; c < count; ++c) sum += prob_mass(scores[first + c]);
    const uint64_t wanted = fraction_mass(top_p), total = wanted < sum ? wanted : sum;
    if (total == 0) return ids[first];
    const uint64_t point = draw_point(slot.random(i, Purpose::kCandidate).u64(), total);
    int64_t c = 0;
    for (uint64_t below = 0; c < count; ++c) {
      below += prob_mass(scores[first + c]);
      if (below > point) break;
    }
    return ids[first + c];
  }
};

// REJECTION, phase 1: by the probabilities of the draft alone. `target_probs` is [rows, vocabulary], `draft_probs`
// (null: one-hot drafts) this slot's [drafts, vocabulary], both flat.
template <typename TargetProbs, typename DraftProbs>
struct VerifierByProbs {
  TargetProbs& target_probs;
  DraftProbs* draft_probs;
  int64_t vocabulary;

  template <typename Drafts>
  SPECDEC_HD int64_t accepted(const VerifySlot& slot, int64_t i, Drafts& drafts) {
    const int64_t draft = drafts[i];
    if (draft < 0 || draft >= vocabulary) return 0;
    const uint64_t p = prob_mass(target_probs[slot.row(i) * vocabulary + draft]);
    const uint64_t q = draft_probs == nullptr ? kMassOne : prob_mass((*draft_probs)[i * vocabulary + draft]);
    return accept_test(slot.random(i, Purpose::kAccept).u32(), q, p) ? 1 : 0;
  }
};

// A token's residual mass: `have` minus its draft mass.
SPECDEC_HD uint64_t residual_mass(uint64_t have, uint64_t taken) { return have > taken ? have - taken : 0; }

// REJECTION, phase 2: a draw from max(0, mass(p) - mass(q)) over the vocabulary, in tiles of any size: sum all, then
// search the tile that holds the point. Tiles may be summed in any order and in parallel.
struct ResidualTile {
  const float* p;
  const float* q;   // null: nothing is taken away but `one_hot`
  int64_t first;    // token of p[0]
  int64_t count;
  int64_t one_hot;  // token whose whole mass is taken away, -1: none

  SPECDEC_HD uint64_t mass(int64_t k) const {
    if (first + k == one_hot) return 0;  // q has mass one there, the most that p can have
    const uint64_t have = prob_mass(p[k]);
    if (q == nullptr) return have;
    return residual_mass(have, prob_mass(q[k]));
  }
};

// Sums of the tiles so far: the residual mass, and the argmax of p (largest mass, smallest token; -1: no tile yet). No
// default values: devices keep it in shared memory, which has no initialisers.
struct ResidualSum {
  uint64_t total, best_mass;
  int64_t best;

  SPECDEC_HD void consider(uint64_t mass, int64_t token) {
    if (best < 0 || mass > best_mass || (mass == best_mass && token < best)) {
      best_mass = mass;
      best = token;
    }
  }
  SPECDEC_HD void add(const ResidualTile& tile) {
    for (int64_t k = 0; k < tile.count; ++k) {
      total += tile.mass(k);
      const uint64_t mass = prob_mass(tile.p[k]);
      if (best < 0 || mass > best_mass) consider(mass, tile.first + k);
    }
  }
  SPECDEC_HD void merge(const ResidualSum& other) {
    total += other.total;
    if (other.best >= 0) consider(other.best_mass, other.best);
  }
};

SPECDEC_HD ResidualSum no_residual() { return {0, 0, -1}; }

// The token at `point`, given the mass `below` all tokens of the tile; -1 if it is not in this tile. Advances `below`.
SPECDEC_HD int64_t residual_find(const ResidualTile& tile, uint64_t point, uint64_t* below) {
  for (int64_t k = 0; k < tile.count; ++k) {
    *below += tile.mass(k);
    if (*below > point) return tile.first + k;
  }
  return -1;
}

}  // namespace specdec
