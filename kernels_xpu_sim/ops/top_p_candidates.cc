#include "../kernels/top_p_candidates.xpu"

#include "ops.h"

namespace specdec::xpu {

void top_p_candidates(const TopPCandidatesArgs& a, const LaunchOptions& options) {
  if (a.rows == 0) return;
  launch(options, a.rows, parts_of(a.vocabulary, kRowShare), top_p_candidates_kernel, tensors_of(a));
}

}  // namespace specdec::xpu
