#include "../kernels/processed_probs.xpu"

#include "ops.h"

namespace specdec::xpu {

void processed_probs(const ProcessedProbsArgs& a, const LaunchOptions& options) {
  if (a.size.rows == 0) return;
  with_logit_type(a.size.type, [&](auto type) {
    using L = decltype(type);
    launch(options, a.size.rows, parts_of(a.size.vocabulary, kRowShare), processed_probs_kernel<L>, tensors_of(a),
           static_cast<const typename L::Bits*>(a.logits), a.probs);
  });
}

}  // namespace specdec::xpu
