// The phases of a request that thinks before it answers (contract, section 8): limits of each, and the token after
// thinking.
#pragma once

#include "specdec/contract.h"
#include "specdec/integers.h"

namespace specdec {

template <typename Tokens>
SPECDEC_HD bool contains(Tokens& tokens, int64_t count, int64_t token) {
  bool found = false;
  for (int64_t i = 0; i < count && !found; ++i) found = tokens[i] == token;
  return found;
}

// A request's limits, negative for none, and the sizes of what goes with them.
struct ThinkingLimits {
  int64_t think_end_id, inject_count, end_count;
  int32_t max_think, max_reply;
  bool fastdeploy;

  SPECDEC_HD bool any() const { return max_think >= 0 || max_reply >= 0; }
  // Tokens of the text that ends thinking.
  SPECDEC_HD int64_t text_size() const { return fastdeploy ? inject_count : max64(inject_count, 1); }
  // The status of a request whose answer has no token.
  SPECDEC_HD int64_t no_answer() const { return text_size() + 1 + (fastdeploy ? 1 : 0); }
  // Whether thinking ends where `step + i` tokens were generated.
  SPECDEC_HD bool full(int64_t step, int64_t i) const {
    const int64_t before = min64(step, int64_t{kInt32Max} + 1) + i;  // more are past every limit
    return fastdeploy && max_think > 0 ? before == max_think : before >= max_think;
  }
};

// Added by FastDeploy to the limit of an answer if its thought ended by itself.
constexpr int64_t kReplyAllowance = 2;

// `token` replaces the emitted one at `at`, which is their number if none is replaced.
struct Replacement {
  int64_t at, token;
};

// Inout: `status`, the slot's limit_status, and max_reply. `tokens[i]`, i < count, are the tokens emitted after `step`
// others; `ends` the end tokens, `inject` the text.
template <typename Tokens, typename Ends, typename Inject>
SPECDEC_HD Replacement limit_thinking_slot(int32_t* status, int32_t* max_reply, const ThinkingLimits& limits,
                                           int64_t step, int64_t count, Tokens& tokens, Ends& ends, Inject& inject) {
  const int64_t size = limits.text_size();
  int64_t now = max64(*status, 0), reply = limits.max_reply;
  Replacement replaced = {count, 0};
  for (int64_t i = 0; i < count && replaced.at == count; ++i) {
    const int64_t token = tokens[i];
    if (now == 0) {
      if (token == limits.think_end_id) {
        now = size + 1;
        if (limits.fastdeploy && reply >= 0) reply = min64(reply + kReplyAllowance, kInt32Max);
        continue;
      }
      if (limits.max_think < 0) continue;
      if (!limits.full(step, i) && (size == 0 || !contains(ends, limits.end_count, token))) continue;
      now = 1;
      if (size == 0) continue;
    }
    int64_t wanted = token;
    if (now <= size) {
      wanted = limits.inject_count > 0 ? inject[now - 1] : limits.think_end_id;
      ++now;
    } else {
      now = max64(now, limits.no_answer());
      if (reply >= 0 && now - limits.no_answer() >= reply && limits.end_count > 0 &&
          (limits.fastdeploy || !contains(ends, limits.end_count, token))) {
        wanted = ends[0];
      } else {
        now = min64(now + 1, kInt32Max);
      }
    }
    if (wanted != token) replaced = {i, wanted};
  }
  *status = static_cast<int32_t>(now);
  *max_reply = static_cast<int32_t>(reply);
  return replaced;
}

// Values of reasoning_status.
constexpr int32_t kThinking = 0, kThinkEndSeen = 1, kConstrained = 2, kReasoned = 3;

// What reasoning_status becomes. `text` is a row of token_ids_all.
template <typename Text>
SPECDEC_HD int32_t next_reasoning_status(int32_t status, bool thinks, int32_t enc, int64_t step_idx,
                                         const History& history, Text& text, int64_t think_end, int64_t line_break) {
  if (status == kConstrained) return kReasoned;
  if (status != kThinking && status != kThinkEndSeen) return status;
  if (status == kThinking && !thinks && enc > 0 && step_idx <= 0) return kConstrained;
  bool seen = false;
  for (int64_t i = max64(history.end - 4, history.prompt_end); i < history.end; ++i) {
    seen = text[i] == think_end || seen;  // in this order no load waits for the previous one
  }
  if (status == kThinking && !seen) return kThinking;
  if (history.end - history.prompt_end < 4) return kThinkEndSeen;
  const int64_t end = history.end;
  const bool boundary = text[end - 4] == line_break && text[end - 3] == think_end && text[end - 2] == line_break &&
                        text[end - 1] == line_break;
  return boundary ? kConstrained : seen ? kThinkEndSeen : kReasoned;
}

// The tokens of a slot, and the input of `next_reasoning_status`.
struct ReasoningSlot {
  bool thinks;
  int32_t enc;
  History history;
  int64_t think_end, line_break;

  // After one more of the tokens: `count` of them are generated, or drafts.
  template <typename Text>
  SPECDEC_HD int32_t move(int32_t status, int64_t count, Text& text) const {
    const History seen = {history.prompt_end, history.prompt_end + count};
    return next_reasoning_status(status, thinks, enc, count, seen, text, think_end, line_break);
  }

  SPECDEC_HD int64_t generated() const { return history.end - history.prompt_end; }

  // After all generated tokens but the first `known`.
  template <typename Text>
  SPECDEC_HD int32_t follow(int32_t status, int64_t known, Text& text) const {
    for (int64_t count = clamp64(known, -1, generated()) + 1; count <= generated(); ++count) {
      const int32_t next = move(status, count, text);
      if (next == status && status != kThinking && status != kThinkEndSeen) break;  // final
      status = next;
    }
    return status;
  }
};

// What forbidden logits become.
SPECDEC_HD float masked_logit(FloatType type) { return type == FloatType::kFloat16 ? -1e4f : -1e10f; }

}  // namespace specdec
