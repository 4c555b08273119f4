#include "../kernels/apply_penalties.xpu"

#include <algorithm>

#include "ops.h"

namespace specdec::xpu {

void apply_penalties(const ApplyPenaltiesArgs& a, const LaunchOptions& options) {
  if (a.size.rows == 0 || a.slots_in_use == 0) return;
  constexpr int64_t kHistoryShare = 128;  // tokens that are worth a core
  int64_t cores = parts_of(a.row_width, kHistoryShare);
  if (penalized_by_tiles(a.size.vocabulary, a.row_width, a.draft_width)) {
    cores = std::max(cores, parts_of(a.size.vocabulary, kPenaltyTile));
  }
  with_logit_type(a.size.type, [&](auto type) {
    using L = decltype(type);
    launch(options, std::min<int64_t>(a.size.rows, a.slots_in_use), cores, apply_penalties_kernel<L>, tensors_of(a),
           static_cast<typename L::Bits*>(a.logits));
  });
}

}  // namespace specdec::xpu
