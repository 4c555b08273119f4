#include "../kernels/sample_target.xpu"

#include "ops.h"

namespace specdec::xpu {

void sample_target(const SampleTargetArgs& a, const LaunchOptions& options) {
  if (a.size.rows == 0) return;
  with_logit_type(a.size.type, [&](auto type) {
    using L = decltype(type);
    launch(options, a.size.rows, parts_of(a.size.vocabulary, kRowShare), sample_target_kernel<L>, tensors_of(a),
           static_cast<const typename L::Bits*>(a.logits), a.target_tokens);
  });
}

}  // namespace specdec::xpu
