// verify_draft_tokens by tokens and by candidates: a team of lanes a slot, two dependent loads deep.
#include "launch.cuh"
#include "ops.h"
#include "verify_residual.cuh"
#include "verify_slot.cuh"

namespace specdec::cuda {

template <unsigned kLanes>
__device__ __forceinline__ int64_t team_index() {
  return (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kLanes;
}

template <unsigned kLanes>
__global__ void verify_by_tokens_kernel(const __grid_constant__ VerifyDraftTokensArgs a) {
  wait_for_previous();
  let_next_start();
  const LaneSlot<kLanes> own(a, team_index<kLanes>());
  RegisterArray<int64_t> target = {0};
  if (own.emits && own.lane <= own.slot.drafts) target.value = a.target_tokens[own.slot.row(own.lane)];
  VerifierByToken<RegisterArray<int64_t>> verifier = {target};
  const int64_t passing = own.verifies(a.accept_policy) ? verifier.accepted(own.slot, own.lane, own.drafts) : 0;
  const EmittedDrafts emitted = own.phase1(a, passing == 1, passing > 1);
  own.store(a, emitted, verifier.token(own.slot, own.lane));
}

constexpr int kLaneCandidates = 8;

// Up to kLaneCandidates candidates a row: a lane holds those of its own.
template <unsigned kLanes>
__global__ void verify_by_few_candidates_kernel(const __grid_constant__ VerifyDraftTokensArgs a) {
  using Lanes = Team<kLanes>;
  wait_for_previous();
  let_next_start();
  const LaneSlot<kLanes> own(a, team_index<kLanes>());
  const bool has_row = own.emits && own.lane <= own.slot.drafts;
  const int64_t row = own.slot.row(own.lane);
  const LaneCandidates<kLaneCandidates> list(a.candidate_ids, a.candidate_scores, row * a.C, has_row ? a.C : 0,
                                             has_row ? a.candidate_lens[row] : 0);
  const float top_p = own.emits ? a.top_p[own.b] : 0.0f;
  const uint64_t random = own.slot.random(own.lane, Purpose::kCandidate).u64();

  const int64_t draft = own.drafts.own;
  const bool verifies = own.verifies(a.accept_policy);
  const uint32_t best = Lanes::ballot(verifies && list.best_is(draft));
  const bool alone = verifies && list.contain(draft);
  const bool window =
      verifies && list.second_is(draft) && window_follows(best, own.lane, a.verify_window, own.slot.drafts);
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
__global__ void verify_by_candidates_kernel(const __grid_constant__ VerifyDraftTokensArgs a) {
  int64_t* const stage = ptx::dynamic_shared<int64_t>();
  wait_for_previous();
  let_next_start();
  const LaneSlot<kLanes> own(a, team_index<kLanes>());
  const bool has_row = own.emits && own.lane <= own.slot.drafts;
  RegisterArray<int32_t> len = {has_row ? a.candidate_lens[own.slot.row(own.lane)] : 0};
  const float top_p = own.emits ? a.top_p[own.b] : 0.0f;

  const auto verify = [&](auto ids, auto scores) {
    VerifierByCandidates<decltype(ids), decltype(scores), RegisterArray<int32_t>> verifier = {
        ids, scores, len, a.C, a.verify_window, top_p};
    const int64_t passing = own.verifies(a.accept_policy) ? verifier.accepted(own.slot, own.lane, own.drafts) : 0;
    const EmittedDrafts emitted = own.phase1(a, passing == 1, passing > 1);
    const bool draws = own.emits && !emitted.stopped && own.lane == emitted.count;
    own.store(a, emitted, draws ? verifier.token(own.slot, own.lane) : -1);
  };
  if constexpr (kStaged) {
    const unsigned teams = blockDim.x / kLanes, team = threadIdx.x / kLanes;
    const int64_t room = a.S * a.C;
    int64_t* ids = stage + team * room;
    float* scores = reinterpret_cast<float*>(stage + teams * room) + team * room;
    const int64_t first = own.slot.row(0) * a.C;
    const int64_t count = own.emits ? (own.slot.row(own.slot.drafts) + 1) * a.C - first : 0;
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

namespace {

constexpr const char* kOp = "verify_draft_tokens";
constexpr unsigned kThreads = 64;

// One of the kernels for teams of 8, 16 and 32 lanes: as many as positions.
template <typename Kernel>
void launch_teams(const VerifyDraftTokensArgs& a, cudaStream_t stream, Kernel by8, Kernel by16, Kernel by32,
                  int64_t cell_bytes) {
  const unsigned lanes = a.S <= 8 ? 8 : a.S <= 16 ? 16 : 32, teams = kThreads / lanes;
  launch(kOp, stream, {blocks_for(a.M, teams), kThreads, static_cast<size_t>(teams * a.S * a.C * cell_bytes)},
         lanes == 8    ? by8
         : lanes == 16 ? by16
                       : by32,
         a);
}

void verify_by_tokens(const VerifyDraftTokensArgs& a, cudaStream_t stream) {
  launch_teams(a, stream, verify_by_tokens_kernel<8>, verify_by_tokens_kernel<16>, verify_by_tokens_kernel<32>, 0);
}

void verify_by_candidates(const VerifyDraftTokensArgs& a, cudaStream_t stream) {
  constexpr int64_t kCellBytes = sizeof(int64_t) + sizeof(float), kRoom = 48 << 10;
  if (a.C <= kLaneCandidates) {
    launch_teams(a, stream, verify_by_few_candidates_kernel<8>, verify_by_few_candidates_kernel<16>,
                 verify_by_few_candidates_kernel<32>, 0);
  } else if (kThreads / 8 * a.S * a.C * kCellBytes <= kRoom) {
    launch_teams(a, stream, verify_by_candidates_kernel<8, true>, verify_by_candidates_kernel<16, true>,
                 verify_by_candidates_kernel<32, true>, kCellBytes);
  } else {
    launch_teams(a, stream, verify_by_candidates_kernel<8, false>, verify_by_candidates_kernel<16, false>,
                 verify_by_candidates_kernel<32, false>, 0);
  }
}

// Blocks per slot: with few slots several each, to fill the chip; one per multiprocessor, since otherwise (measured)
// not all clusters are resident at once.
unsigned residual_cluster(const VerifyDraftTokensArgs& a) {
  if (compute_capability_major(kOp) < 9) return 1;
  constexpr int64_t kWorthABlock = 8192;  // elements
  const int64_t sms = device_sms(kOp);
  unsigned blocks = 1;
  while (blocks < kMaxCluster && a.B * blocks * 2 <= sms && a.V >= blocks * 2 * kWorthABlock) {
    blocks *= 2;
  }
  return blocks;
}

void verify_by_probs(const VerifyDraftTokensArgs& a, cudaStream_t stream) {
  const unsigned cluster = residual_cluster(a);
  const int64_t cells = (a.M - a.B) * a.S;
  const unsigned clearing = cells == 0 ? 0 : blocks_for(blocks_for(cells, kResidualThreads), cluster) * cluster;
  const unsigned grid = static_cast<unsigned>(a.B) * cluster + clearing;
  if (grid == 0) return;
  launch(kOp, stream, {grid, kResidualThreads, 0, cluster}, verify_by_probs_kernel, a);
}

}  // namespace

void verify_draft_tokens(const VerifyDraftTokensArgs& a, cudaStream_t stream) {
  switch (a.strategy) {
    case Strategy::kGreedy:
    case Strategy::kTargetMatch: return verify_by_tokens(a, stream);
    case Strategy::kTopp: return verify_by_candidates(a, stream);
    case Strategy::kRejection: return verify_by_probs(a, stream);
  }
}
SPECDEC_OP(verify_draft_tokens, kLimits)

}  // namespace specdec::cuda
