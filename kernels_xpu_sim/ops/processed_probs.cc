#include "../kernels/processed_probs.xpu"

#include "logit_types.h"

namespace specdec::xpu {

void processed_probs(const ProcessedProbsArgs& a, const LaunchOptions& options) {
  const int64_t rows = a.size.rows, vocabulary = a.size.vocabulary;
  if (rows == 0) return;
  const SamplingTensors params{a.row_temperature, a.row_top_p, a.row_min_p, a.row_top_k,
                               nullptr,           a.position,  rows,        vocabulary};
  with_logit_type(a.size.type, [&](auto type) {
    using L = decltype(type);
    launch(options, rows, parts_of(vocabulary, kRowShare), processed_probs_kernel<L>, params,
           static_cast<const typename L::Bits*>(a.logits), a.probs);
  });
}

}  // namespace specdec::xpu
