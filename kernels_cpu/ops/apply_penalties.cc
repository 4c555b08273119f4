// apply_penalties: slots over the threads.
#include <utility>
#include <vector>

#include "rows.h"
#include "specdec/penalty.h"
#include "specdec_ops/apply_penalties.h"

namespace specdec::cpu {
namespace {

// Of all token ids.
struct Tallies {
  int32_t* at;

  int32_t add(int64_t i, int32_t n) { return std::exchange(at[i], at[i] + n); }
  int32_t mark(int64_t i, int32_t bits) { return std::exchange(at[i], at[i] | bits); }
  int32_t take(int64_t i) { return std::exchange(at[i], 0); }
  int32_t take_alone(int64_t i) { return take(i); }
};

struct SlotHistory {
  const int64_t *text, *drafts;
  int64_t end;

  template <class Visitor>
  void visit(Visitor& v) const {
    v.tile(text, 0, static_cast<int>(end));
  }
  template <class Visitor>
  void visit_drafts(Visitor& v, int64_t count) const {
    v.tile(drafts + 1, 0, static_cast<int>(count));
  }
};

template <class L>
struct Logits {
  typename L::Bits* rows;
  int64_t vocabulary;

  float load(int64_t row, int64_t token) const { return L::widen(rows[row * vocabulary + token]); }
  void store(int64_t row, int64_t token, float x) { rows[row * vocabulary + token] = L::narrow(x); }
};

template <class L>
void penalize(const ApplyPenaltiesArgs& a, int64_t b, int64_t first, int64_t stop) {
  const PenaltyParams params = {a.repetition[b], a.frequency[b], a.presence[b]};
  const PenaltyRows rows = {first, stop, a.cu_seqlens_q_output[b], a.S};
  Logits<L> logits = {static_cast<typename L::Bits*>(a.logits), a.V};
  Solo team;
  const int64_t* const drafts = a.draft_tokens + b * a.S;
  if (params.any()) {
    const History bounds = history_bounds(a.L, a.prompt_lens[b], a.step_idx[b]);
    const SlotHistory history = {a.token_ids_all + b * a.L, drafts, bounds.end};
    thread_local std::vector<int32_t> tallies, list;
    tallies.resize(static_cast<size_t>(a.V));  // all 0, as penalize_rows leaves them
    list.resize(static_cast<size_t>(bounds.end + a.S));
    Tallies table = {tallies.data()};
    penalize_rows(team, table, a.V, a.V, history, bounds.prompt_end, params, rows, logits, drafts, list.data(),
                  static_cast<int>(list.size()), true);
  }
  const int64_t* const bad_tokens = a.bad_tokens + b * a.W;
  forbid_tokens(team, a.V, bad_tokens, a.W, a.end_tokens, a.E, a.step_idx[b], a.min_dec_len[b], rows, logits);
}

}  // namespace

void apply_penalties(const ApplyPenaltiesArgs& a, Context threads) {
  std::vector<int64_t> firsts;  // of neighbouring rows of one slot
  for (int64_t r = 0; r < a.R_cap; ++r) {
    if (r == 0 || a.batch_id_per_token_output[r] != a.batch_id_per_token_output[r - 1]) firsts.push_back(r);
  }
  firsts.push_back(a.R_cap);
  with_float_type(a.logits_type, [&](auto type) {
    each(threads, static_cast<int64_t>(firsts.size()) - 1, 2 * a.L, [&](int64_t i) {
      const int64_t first = firsts[static_cast<size_t>(i)], b = a.batch_id_per_token_output[first];
      if (b >= 0 && b < a.B) penalize<decltype(type)>(a, b, first, firsts[static_cast<size_t>(i) + 1]);
    });
  });
}
SPECDEC_OP(apply_penalties, kUnlimited)

}  // namespace specdec::cpu
