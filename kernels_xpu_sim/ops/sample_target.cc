#include "../kernels/sample_target.xpu"

#include "logit_types.h"

namespace specdec::xpu {

void sample_target(const SampleTargetArgs& a, const LaunchOptions& options) {
  const int64_t rows = a.size.rows, vocabulary = a.size.vocabulary;
  if (rows == 0) return;
  const SamplingTensors params{a.row_temperature, a.row_top_p, a.row_min_p, a.row_top_k,
                               a.row_seed,        a.position,  rows,        vocabulary};
  with_logit_type(a.size.type, [&](auto type) {
    using L = decltype(type);
    launch(options, rows, parts_of(vocabulary, kRowShare), sample_target_kernel<L>, params,
           static_cast<const typename L::Bits*>(a.logits), a.target_tokens);
  });
}

}  // namespace specdec::xpu
