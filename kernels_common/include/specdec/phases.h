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

// Whether a slot leaves this value of reasoning_status by its tokens.
SPECDEC_HD bool follows_text(int32_t status) { return status == kThinking || status == kThinkEndSeen; }

// Which of a slot's four newest tokens end its thinking, and which are line breaks: bit 0 is the oldest of them. Tokens
// of the prompt are neither.
struct NewestTokens {
  static constexpr int kCount = 4;

  uint32_t ends, breaks;

  SPECDEC_HD bool think_end() const { return ends != 0; }
  // A line break, the end of thinking and two line breaks.
  SPECDEC_HD bool boundary() const { return (ends & 0x2u) != 0 && (breaks & 0xDu) == 0xDu; }
};

// The tokens of a slot, and what its status follows from.
struct ReasoningSlot {
  bool thinks;
  int32_t enc;
  History history;
  int64_t think_end, line_break;

  SPECDEC_HD int64_t generated() const { return history.end - history.prompt_end; }
  // The newest of `count` tokens, which are generated, or drafts. `text` is a row of token_ids_all, then drafts.
  template <typename Text>
  SPECDEC_HD NewestTokens newest(int64_t count, Text& text) const {
    NewestTokens newest = {0, 0};
    for (int64_t i = max64(NewestTokens::kCount - count, 0); i < NewestTokens::kCount; ++i) {
      const int64_t token = text[history.prompt_end + count - NewestTokens::kCount + i];
      newest.ends |= static_cast<uint32_t>(token == think_end) << i;
      newest.breaks |= static_cast<uint32_t>(token == line_break) << i;
    }
    return newest;
  }
  // What reasoning_status becomes after `count` tokens.
  SPECDEC_HD int32_t next(int32_t status, int64_t count, const NewestTokens& newest) const {
    if (status == kConstrained) return kReasoned;
    if (!follows_text(status)) return status;
    if (status == kThinking && !thinks && enc > 0 && count <= 0) return kConstrained;
    if (status == kThinking && !newest.think_end()) return kThinking;
    if (count < NewestTokens::kCount) return kThinkEndSeen;
    return newest.boundary() ? kConstrained : newest.think_end() ? kThinkEndSeen : kReasoned;
  }
  template <typename Text>
  SPECDEC_HD int32_t move(int32_t status, int64_t count, Text& text) const {
    return next(status, count, follows_text(status) ? newest(count, text) : NewestTokens{});
  }
  // The tokens, of `known` before, after which the first move comes.
  SPECDEC_HD int64_t first_move(int64_t known) const { return clamp64(known, -1, generated()) + 1; }

  // After all generated tokens but the first `known`.
  template <typename Text>
  SPECDEC_HD int32_t follow(int32_t status, int64_t known, Text& text) const {
    for (int64_t count = first_move(known); count <= generated(); ++count) {
      const int32_t next = move(status, count, text);
      if (next == status && !follows_text(status)) break;  // final
      status = next;
    }
    return status;
  }
};

// What forbidden logits become.
SPECDEC_HD float masked_logit(FloatType type) { return type == FloatType::kFloat16 ? -1e4f : -1e10f; }

}  // namespace specdec
