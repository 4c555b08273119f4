#include "../kernels/token_logprobs.xpu"

#include "logit_types.h"

namespace specdec::xpu {

void token_logprobs(const TokenLogprobsArgs& a, const LaunchOptions& options) {
  if (a.entries == 0) return;
  const LogprobTensors tensors{a.rows,     a.token_ids, a.cu_batch_token_offset + a.slots,
                               a.ids,      a.logprobs,  a.ranks,
                               a.size.rows, a.size.vocabulary, a.entries, a.width};
  with_logit_type(a.size.type, [&](auto type) {
    using L = decltype(type);
    launch(options, a.entries, parts_of(a.size.vocabulary, kRowShare), token_logprobs_kernel<L>, tensors,
           static_cast<const typename L::Bits*>(a.logits));
  });
}

}  // namespace specdec::xpu
