// verify_draft_tokens by tokens and by candidates: a team of lanes a slot, two dependent loads deep.
#pragma once

#include "verify_slot.cuh"

namespace specdec::cuda {

template <unsigned kLanes>
__device__ __forceinline__ int64_t team_index() {
  return (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kLanes;
}

template <unsigned kLanes>
__global__ void verify_by_tokens_kernel(const __grid_constant__ VerifyArgs a) {
  wait_for_previous();
  let_next_start();
  const LaneSlot<kLanes> own(a, team_index<kLanes>());
  Held<int64_t> target = {0};
  if (own.emits && own.lane <= own.slot.drafts) target.value = a.target_tokens[own.slot.row(own.lane)];
  JudgeByToken<Held<int64_t>> judge = {target};
  const int64_t passing = own.judges(a.policy) ? judge.accepted(own.slot, own.lane, own.drafts) : 0;
  const EmittedDrafts emitted = own.phase1(a, passing == 1, passing > 1);
  own.store(a, emitted, judge.token(own.slot, own.lane));
}

constexpr int kLaneCandidates = 8;

// Up to kLaneCandidates candidates a row: a lane holds those of its own.
template <unsigned kLanes>
__global__ void verify_by_few_candidates_kernel(const __grid_constant__ VerifyArgs a) {
  using Lanes = Team<kLanes>;
  wait_for_previous();
  let_next_start();
  const LaneSlot<kLanes> own(a, team_index<kLanes>());
  const bool has_row = own.emits && own.lane <= own.slot.drafts;
  const int64_t row = own.slot.row(own.lane);
  const LaneCandidates<kLaneCandidates> list(a.candidate_ids, a.candidate_scores, row * a.width, has_row ? a.width : 0,
                                             has_row ? a.candidate_lens[row] : 0);
  const float top_p = own.emits ? a.top_p[own.b] : 0.0f;
  const uint64_t random = own.slot.random(own.lane, Purpose::kCandidate).u64();

  const int64_t draft = own.drafts.own;
  const bool judges = own.judges(a.policy);
  const uint32_t best = Lanes::ballot(judges && list.best_is(draft));
  const bool alone = judges && list.contain(draft);
  const bool window =
      judges && list.second_is(draft) && window_follows(best, own.lane, a.verify_window, own.slot.drafts);
  const EmittedDrafts emitted = own.phase1(a, alone, window);
  own.store(a, emitted, list.draw(top_p, random));
}

// Part of an array, copied to shared memory, under its own indices.
template <typename T>
struct Staged {
  const T* cells;
  int64_t first;

  __device__ __forceinline__ T operator[](int64_t i) const { return cells[i - first]; }
};

// `kStaged`: the candidates of a slot's rows, which are neighbours, fit in its part of shared memory.
template <unsigned kLanes, bool kStaged>
__global__ void verify_by_candidates_kernel(const __grid_constant__ VerifyArgs a) {
  int64_t* const stage = ptx::dynamic_shared<int64_t>();
  wait_for_previous();
  let_next_start();
  const LaneSlot<kLanes> own(a, team_index<kLanes>());
  const bool has_row = own.emits && own.lane <= own.slot.drafts;
  Held<int32_t> len = {has_row ? a.candidate_lens[own.slot.row(own.lane)] : 0};
  const float top_p = own.emits ? a.top_p[own.b] : 0.0f;

  const auto verify = [&](auto ids, auto scores) {
    JudgeByCandidates<decltype(ids), decltype(scores), Held<int32_t>> judge = {ids,     scores,          len,
                                                                               a.width, a.verify_window, top_p};
    const int64_t passing = own.judges(a.policy) ? judge.accepted(own.slot, own.lane, own.drafts) : 0;
    const EmittedDrafts emitted = own.phase1(a, passing == 1, passing > 1);
    const bool draws = own.emits && !emitted.stopped && own.lane == emitted.count;
    own.store(a, emitted, draws ? judge.token(own.slot, own.lane) : -1);
  };
  if constexpr (kStaged) {
    const unsigned teams = blockDim.x / kLanes, team = threadIdx.x / kLanes;
    const int64_t room = a.draft_width * a.width;
    int64_t* ids = stage + team * room;
    float* scores = reinterpret_cast<float*>(stage + teams * room) + team * room;
    const int64_t first = own.slot.row(0) * a.width;
    const int64_t count = own.emits ? (own.slot.row(own.slot.drafts) + 1) * a.width - first : 0;
#pragma unroll 4
    for (int64_t k = own.lane; k < count; k += kLanes) {
      ids[k] = a.candidate_ids[first + k];
      scores[k] = a.candidate_scores[first + k];
    }
    __syncwarp();
    verify(Staged<int64_t>{ids, first}, Staged<float>{scores, first});
  } else {
    verify(a.candidate_ids, a.candidate_scores);
  }
}

}  // namespace specdec::cuda
