#include "../kernels/token_logprobs.xpu"

#include "ops.h"

namespace specdec::xpu {

void token_logprobs(const TokenLogprobsArgs& a, const LaunchOptions& options) {
  if (a.entries == 0) return;
  with_logit_type(a.size.type, [&](auto type) {
    using L = decltype(type);
    launch(options, a.entries, parts_of(a.size.vocabulary, kRowShare), token_logprobs_kernel<L>, tensors_of(a),
           static_cast<const typename L::Bits*>(a.logits));
  });
}

}  // namespace specdec::xpu
