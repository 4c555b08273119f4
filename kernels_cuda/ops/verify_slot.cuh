// A team of lanes verifies one slot, lane i the draft at position i. Independent loads are issued together, since a
// step's cost is its chain of dependent loads.
#pragma once

#include "specdec/verify_lanes.h"
#include "specdec_ops/verify_draft_tokens.h"
#include "warp.cuh"

namespace specdec::cuda {

// The end tokens, one a lane; those that do not fit stay in memory.
template <unsigned kLanes>
class EndTokens {
 public:
  __device__ __forceinline__ explicit EndTokens(const VerifyDraftTokensArgs& a)
      : tokens_(a.end_tokens), count_(a.E), own_(0) {
    if (Team<kLanes>::rank() < count_) own_ = tokens_[Team<kLanes>::rank()];
  }

  // Whether `token` of this lane is one of them. All lanes of the warp together.
  __device__ __forceinline__ bool contain(int64_t token) const {
    bool found = false;
    const int held = static_cast<int>(min64(count_, kLanes));
    for (int e = 0; e < held; ++e) found |= Team<kLanes>::get(own_, e) == token;  // never skipped: lanes wait for lanes
    for (int64_t e = kLanes; e < count_; ++e) found |= tokens_[e] == token;
    return found;
  }
  // There is at least one.
  __device__ __forceinline__ int64_t first() const { return Team<kLanes>::get(own_, 0); }

 private:
  const int64_t* tokens_;
  int64_t count_, own_;
};

// A value in a register, for rules that read an array.
template <typename T>
struct RegisterArray {
  T value;

  __device__ __forceinline__ T operator[](int64_t) const { return value; }
};

// The drafts of a slot: this lane's own from a register, others (TOPP's window) from memory.
struct LaneDrafts {
  const int64_t* drafts;
  int64_t lane, own;

  __device__ __forceinline__ int64_t operator[](int64_t i) const { return i == lane ? own : drafts[i]; }
};

// A lane's view of its slot.
template <unsigned kLanes>
struct LaneSlot {
  const EndTokens<kLanes> ends;
  const int64_t b, lane;
  const bool in_use;
  const LaneDrafts drafts;
  const VerifyState state;
  const bool emits;
  const VerifySlot slot;
  const EmitRule rule;

  __device__ __forceinline__ LaneSlot(const VerifyDraftTokensArgs& a, int64_t index)
      : ends(a),
        b(index),
        lane(Team<kLanes>::rank()),
        in_use(index < a.B && a.R_cap > 0),
        drafts{a.draft_tokens + index * a.S + 1, lane,
               in_use && lane + 1 < a.S ? a.draft_tokens[index * a.S + 1 + lane] : -1},
        state(in_use ? load_state(a, index) : VerifyState{}),
        emits(in_use && verify_emits(state)),
        slot(state, a.S, a.R_cap),
        rule(rule_of(a, in_use && a.ignore_end != nullptr && a.ignore_end[index], slot.limit)) {}

  static __device__ __forceinline__ EmitRule rule_of(const VerifyDraftTokensArgs& a, bool ignore_end, int64_t limit) {
    const bool ends = !ignore_end && a.accept_policy != AcceptPolicy::kAcceptAll;
    return {ignore_end ? 0 : a.E, limit, !ends, a.end_at_limit};
  }

  // The lane has a draft to verify.
  __device__ __forceinline__ bool verifies(AcceptPolicy policy) const {
    return emits && slot.tests_drafts && lane < slot.drafts && policy == AcceptPolicy::kNormal;
  }

  // Phase 1; what the verifier says of this lane's draft: it passes alone, with the window after it.
  __device__ __forceinline__ EmittedDrafts phase1(const VerifyDraftTokensArgs& a, bool alone, bool window) const {
    using Lanes = Team<kLanes>;
    const bool stops = rule.stops(lane + 1, ends.contain(drafts.own));
    const LaneVotes votes = {Lanes::ballot(alone), Lanes::ballot(window), Lanes::ballot(stops)};
    return emits ? emitted_drafts(slot, a.accept_policy, votes, a.verify_window) : EmittedDrafts{0, false, true};
  }

  // The slot's row of results. `follower`: of lane `emitted.count`, the token of phase 2, if there is one; `later`: it
  // is not known yet, and the kernel that draws it writes its cell.
  __device__ __forceinline__ void store(const VerifyDraftTokensArgs& a, const EmittedDrafts& emitted, int64_t follower,
                                        bool later = false) const {
    const int count = emitted.count + (emitted.stopped ? 0 : 1);
    int64_t token = lane < emitted.count ? drafts.own : follower;
    const bool is_end = ends.contain(token);
    if (lane == count - 1 && rule.replaces(count, is_end)) token = a.end_tokens[0];
    if (b >= a.M) return;
    if (lane < a.S && !(later && lane == emitted.count)) {
      a.accept_tokens[b * a.S + lane] = lane < count ? token : -1;
    }
    if (lane == 0) a.accept_num[b] = count;
  }
};

}  // namespace specdec::cuda
