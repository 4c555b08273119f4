// Verification of one slot by lanes, one position each, combined by bit masks. Equals the sequential `verify_drafts`
// with `Emission`.
#pragma once

#include "specdec/verify.h"

namespace specdec {

// Positions that lanes have room for: bit i of a mask is position i.
constexpr int64_t kMaxLanes = 32;

struct LaneVotes {
  uint32_t alone;   // the verifier lets the draft at i pass, and only it
  uint32_t window;  // it lets more than one pass: TOPP's window
  uint32_t stops;   // the draft at i, once emitted, stops the slot
};

// Phase 1: how many drafts are emitted; whether the next one was rejected; whether the last one stopped the slot, else
// one more token follows.
struct EmittedDrafts {
  int count;
  bool rejected, stopped;
};

// The candidates of one row, at most kMax, in registers: VerifierByCandidates without dependent loads.
template <int kMax>
class LaneCandidates {
 public:
  // Of the row whose `width` candidates begin at `first`; `len` as the tensor has it. No candidates: width 0.
  template <typename Ids, typename Scores>
  SPECDEC_HD LaneCandidates(Ids& ids, Scores& scores, int64_t first, int64_t width, int64_t len)
      : width_(static_cast<int>(width)), count_(static_cast<int>(clamp64(len, 1, width))) {
    float scores_of[kMax];  // those beyond `len` too, so that their loads do not wait for it
    for (int c = 0; c < kMax; ++c) {
      ids_[c] = c < width_ ? ids[first + c] : -1;
      scores_of[c] = c < width_ ? scores[first + c] : 0.0f;
    }
    if (width_ > 1 && prob_mass(scores_of[1]) != 0) second_ = ids_[1];
    for (int c = 0; c < kMax; ++c) masses_[c] = prob_mass(c < count_ ? scores_of[c] : 0.0f);
  }

  SPECDEC_HD bool contain(int64_t draft) const {
    bool found = false;
    for (int c = 0; c < kMax; ++c) found |= masses_[c] != 0 && ids_[c] == draft;
    return found;
  }
  SPECDEC_HD bool best_is(int64_t draft) const { return width_ > 0 && ids_[0] == draft; }
  SPECDEC_HD bool second_is(int64_t draft) const { return second_ >= 0 && second_ == draft; }

  // As VerifierByCandidates::token.
  SPECDEC_HD int64_t draw(float top_p, uint64_t random) const {
    uint64_t sum = 0;
    for (int c = 0; c < kMax; ++c) sum += masses_[c];
    const uint64_t wanted = fraction_mass(top_p), total = wanted < sum ? wanted : sum;
    const uint64_t point = draw_point(random, total);
    int64_t token = ids_[0];
    uint64_t below = 0;
    for (int c = 1; c < kMax; ++c) {
      below += masses_[c - 1];
      if (c < count_ && total > 0 && below <= point) token = ids_[c];
    }
    return token;
  }

 private:
  int width_, count_;
  int64_t second_ = -1;  // that weighs something
  int64_t ids_[kMax];
  uint64_t masses_[kMax];
};

// Whether the `window` positions after i exist and are all in `best`: positions whose best candidate is their draft.
SPECDEC_HD bool window_follows(uint32_t best, int64_t i, int64_t window, int64_t drafts) {
  return window <= drafts - 1 - i && count_trailing_ones(best >> (i + 1)) >= window;
}

SPECDEC_HD EmittedDrafts emitted_drafts(const VerifySlot& slot, AcceptPolicy policy, const LaneVotes& votes,
                                        int64_t window) {
  const int drafts = static_cast<int>(slot.drafts);
  const uint32_t alone = policy == AcceptPolicy::kAcceptAll ? 0xFFFFFFFFu : votes.alone;
  int passing = 0;
  bool rejected = false;
  if (policy != AcceptPolicy::kRejectAll && slot.tests_drafts) {
    while (passing < drafts && !rejected) {
      const int run = count_trailing_ones(alone >> passing);
      if (run > 0) {
        passing += run;
      } else if (votes.window >> passing & 1) {
        passing += 1 + static_cast<int>(window);
      } else {
        rejected = true;
      }
    }
    passing = passing < drafts ? passing : drafts;
  }
  const int before_stop = count_trailing_ones(~votes.stops);
  if (before_stop < passing) return {before_stop + 1, false, true};
  return {passing, rejected, false};
}

}  // namespace specdec
