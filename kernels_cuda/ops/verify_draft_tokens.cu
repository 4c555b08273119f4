#include "launch.cuh"
#include "ops.h"
#include "verify_draft_tokens.cuh"
#include "verify_residual.cuh"

namespace specdec::cuda {
namespace {

constexpr const char* kOp = "verify_draft_tokens";
constexpr unsigned kThreads = 64;

// One of the kernels for teams of 8, 16 and 32 lanes: as many as positions.
template <typename Kernel>
void launch_teams(const VerifyArgs& a, cudaStream_t stream, Kernel by8, Kernel by16, Kernel by32, int64_t cell_bytes) {
  const unsigned lanes = a.draft_width <= 8 ? 8 : a.draft_width <= 16 ? 16 : 32, teams = kThreads / lanes;
  launch(kOp, stream,
         {blocks_for(a.slots, teams), kThreads, static_cast<size_t>(teams * a.draft_width * a.width * cell_bytes)},
         lanes == 8 ? by8 : lanes == 16 ? by16 : by32, a);
}

void verify_by_tokens(const VerifyArgs& a, cudaStream_t stream) {
  launch_teams(a, stream, verify_by_tokens_kernel<8>, verify_by_tokens_kernel<16>, verify_by_tokens_kernel<32>, 0);
}

void verify_by_candidates(const VerifyArgs& a, cudaStream_t stream) {
  constexpr int64_t kCellBytes = sizeof(int64_t) + sizeof(float), kRoom = 48 << 10;
  if (a.width <= kLaneCandidates) {
    launch_teams(a, stream, verify_by_few_candidates_kernel<8>, verify_by_few_candidates_kernel<16>,
                 verify_by_few_candidates_kernel<32>, 0);
  } else if (kThreads / 8 * a.draft_width * a.width * kCellBytes <= kRoom) {
    launch_teams(a, stream, verify_by_candidates_kernel<8, true>, verify_by_candidates_kernel<16, true>,
                 verify_by_candidates_kernel<32, true>, kCellBytes);
  } else {
    launch_teams(a, stream, verify_by_candidates_kernel<8, false>, verify_by_candidates_kernel<16, false>,
                 verify_by_candidates_kernel<32, false>, 0);
  }
}

// Blocks a slot: few slots take several each, so that the chip is full. Not two on a multiprocessor: measured, clusters
// then do not all find room at the same time.
unsigned residual_cluster(const VerifyArgs& a) {
  if (device_generation(kOp) < 9) return 1;
  constexpr int64_t kFull = 132, kWorthABlock = 8192;
  unsigned blocks = 1;
  while (blocks < kMostCluster && a.slots_in_use * blocks * 2 <= kFull && a.width >= blocks * 2 * kWorthABlock) {
    blocks *= 2;
  }
  return blocks;
}

void verify_by_probs(const VerifyArgs& a, cudaStream_t stream) {
  const unsigned cluster = residual_cluster(a);
  const int64_t cells = (a.slots - a.slots_in_use) * a.draft_width;
  const unsigned clearing = cells == 0 ? 0 : blocks_for(blocks_for(cells, kResidualThreads), cluster) * cluster;
  const unsigned grid = static_cast<unsigned>(a.slots_in_use) * cluster + clearing;
  if (grid == 0) return;
  launch(kOp, stream, {grid, kResidualThreads, 0, cluster}, verify_by_probs_kernel, a);
}

}  // namespace

void verify_draft_tokens(const VerifyArgs& a, cudaStream_t stream) {
  switch (a.strategy) {
    case Strategy::kGreedy:
    case Strategy::kTargetMatch:
      return verify_by_tokens(a, stream);
    case Strategy::kTopP:
      return verify_by_candidates(a, stream);
    case Strategy::kRejection:
      return verify_by_probs(a, stream);
  }
}

}  // namespace specdec::cuda
