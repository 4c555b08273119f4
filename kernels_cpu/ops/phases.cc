// limit_thinking, reasoning_constraint.
#include <vector>

#include "../op.h"
#include "specdec/flag.h"
#include "specdec/phases.h"
#include "specdec/row_floats.h"
#include "specdec_ops/limit_thinking.h"
#include "specdec_ops/reasoning_constraint.h"

namespace specdec::cpu {

void limit_thinking(const LimitThinkingArgs& a, Context) {
  for (int64_t b = 0; b < a.M; ++b) {
    const ThinkingLimits limits = {a.think_end_id, a.J, a.E, a.max_think_lens[b], a.max_reply_lens[b], a.fastdeploy};
    const int64_t count = clamp64(a.accept_num[b], 0, a.S);
    if (a.stop_flags[b] || !limits.any() || count == 0) continue;
    int64_t* const tokens = a.accept_tokens + b * a.S;
    const Replacement replaced = limit_thinking_slot(a.limit_status + b, a.max_reply_lens + b, limits, a.step_idx[b],
                                                     count, tokens, a.end_tokens, a.inject_token_ids);
    if (replaced.at == count) continue;
    tokens[replaced.at] = replaced.token;
    if (!a.keep_tail) std::fill(tokens + replaced.at + 1, tokens + a.S, int64_t{-1});
    a.accept_num[b] = static_cast<int32_t>(replaced.at + 1);
  }
}
SPECDEC_OP(limit_thinking, kUnlimited)

void reasoning_constraint(const ReasoningConstraintArgs& a, Context threads) {
  std::vector<int64_t> constrained;  // rows
  for (int64_t b = 0; b < a.B; ++b) {
    const int64_t first = a.cu_seqlens_q_output[b], end = a.cu_seqlens_q_output[b + 1];
    if (a.stop_flags[b] || first >= end) continue;
    const int32_t enc = a.seq_lens_encoder[b];
    const ReasoningSlot slot = {a.enable_thinking[b], enc, history_bounds(a.L, a.prompt_lens[b], a.step_idx[b]),
                                a.think_end_id, a.line_break_id};
    const bool every_row = a.draft_tokens != nullptr && enc <= 0;
    const int64_t count = every_row ? min64(end - first, a.S) : 1;
    const SlotText text = {a.token_ids_all + b * a.L, every_row ? a.draft_tokens + b * a.S + 1 : nullptr,
                           slot.history.end};
    int32_t status = a.reasoning_status[b];
    status = a.reasoning_seen == nullptr ? slot.move(status, slot.generated(), text)
                                         : slot.follow(status, a.reasoning_seen[b], text);
    a.reasoning_status[b] = status;
    if (a.reasoning_seen != nullptr) a.reasoning_seen[b] = slot.generated();
    for (int64_t i = 0; i < count; ++i) {
      if (i > 0) status = slot.move(status, slot.generated() + i, text);
      const int64_t row = first + i;
      if (status == kConstrained && a.H > 0 && row >= 0 && row < a.R_cap) constrained.push_back(row);
    }
  }
  with_float_type(a.logits_type, [&](auto type) {
    using L = decltype(type);
    const auto masked = L::narrow(masked_logit(a.logits_type));
    each(threads, static_cast<int64_t>(constrained.size()), a.V / 8, [&](int64_t i) {
      auto* const row = static_cast<typename L::Bits*>(a.logits) + constrained[static_cast<size_t>(i)] * a.V;
      std::vector<typename L::Bits> kept(static_cast<size_t>(a.H), masked);
      const auto each_allowed = [&](auto body) {
        for (int64_t k = 0; k < a.H; ++k) {
          const int64_t token = a.allowed_tokens[k];
          if (token >= 0 && token < a.V) body(kept[static_cast<size_t>(k)], row[token]);
        }
      };
      each_allowed([](auto& value, auto& logit) { value = logit; });
      std::fill_n(row, a.V, masked);
      each_allowed([](auto& value, auto& logit) { logit = value; });
    });
  });
}
SPECDEC_OP(reasoning_constraint, kUnlimited)

}  // namespace specdec::cpu
