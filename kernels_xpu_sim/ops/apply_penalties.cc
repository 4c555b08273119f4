#include "../kernels/apply_penalties.xpu"

#include "ops.h"

namespace specdec::xpu {

void apply_penalties(const ApplyPenaltiesArgs& a, const LaunchOptions& options) {
  if (a.size.rows == 0 || a.slots_in_use == 0) return;
  constexpr int64_t kHistoryShare = 128;  // tokens that are worth a core
  with_logit_type(a.size.type, [&](auto type) {
    using L = decltype(type);
    launch(options, a.size.rows, parts_of(a.row_width, kHistoryShare), apply_penalties_kernel<L>, tensors_of(a),
           static_cast<typename L::Bits*>(a.logits));
  });
}

}  // namespace specdec::xpu
