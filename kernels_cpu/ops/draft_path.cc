// select_draft_path: an item is a slot, whose rows follow one another.
#include "specdec/draft_path.h"

#include <vector>

#include "../op.h"
#include "slot_rows.h"
#include "specdec/philox.h"
#include "specdec/row_floats.h"
#include "specdec_ops/select_draft_path.h"

namespace specdec::cpu {
namespace {

constexpr Limit kPathLimits[] = {{"C_draft", served::kC_draft}};
constexpr int64_t kFlopsPerNs = 4;  // of a thread

template <class L>
SPECDEC_VECTOR float score(const float* weights, const typename L::Bits* code, int64_t width, float logit) {
  float parts[kDotParts] = {};
  int64_t i = 0;
  for (; i + kDotParts <= width; i += kDotParts) add_products<L>(weights + i, code + i, kDotParts, parts);
  add_products<L>(weights + i, code + i, width - i, parts);
  return add_rn(logit, dot_sum(parts));
}

template <class L>
void walk(const SelectDraftPathArgs& a, int64_t first, int64_t stop, int64_t previous) {
  using Bits = typename L::Bits;
  const auto *hidden = static_cast<const Bits*>(a.path_hidden), *before = static_cast<const Bits*>(a.predecessor_codes),
             *after = static_cast<const Bits*>(a.successor_codes);
  std::vector<float> weights(static_cast<size_t>(a.D));
  int32_t keys[served::kC_draft];
  int64_t ids[served::kC_draft];
  uint64_t masses[served::kC_draft], total;
  const PathRow row = {keys, ids, static_cast<int>(a.C_draft)};
  for (int64_t r = first; r < stop && a.position[r] >= 0; ++r) {
    const bool known = previous >= 0 && previous < a.V;
    for (int64_t i = 0; i < a.D; ++i) {
      const float code = known ? L::widen(before[previous * a.D + i]) : 0.0f;
      weights[static_cast<size_t>(i)] = mul_rn(code, L::widen(hidden[r * a.D + i]));
    }
    std::copy_n(a.path_ids + r * a.C_draft, a.C_draft, ids);
    for (int c = 0; c < row.count; ++c) {
      if (!is_candidate(ids, c, a.V)) ids[c] = -1;
      const float logit = a.path_logits[r * a.C_draft + c];
      keys[c] = ids[c] < 0 ? -kKeyInf : order_key(score<L>(weights.data(), after + ids[c] * a.D, a.D, logit));
    }
    const SamplingParams params = {a.row_temperature[r], a.row_top_p[r], a.row_min_p[r], a.row_top_k[r]};
    const uint64_t random = philox_words(a.row_seed[r], a.position[r], a.purpose).u64();
    const int drawn = draw_entry(row, params, random, masses, &total);
    if (drawn < 0) return;
    a.path_tokens[r] = previous = ids[drawn];
    for (int c = 0; c < row.count && a.probs != nullptr; ++c) {
      if (ids[c] >= 0) a.probs[r * a.V + ids[c]] = mass_ratio(masses[c], total);
    }
  }
}

}  // namespace

void select_draft_path(const SelectDraftPathArgs& a, Context threads) {
  std::fill_n(a.path_tokens, a.R_cap, int64_t{-1});
  if (a.probs != nullptr) {
    each(threads, a.R_cap, a.V / kFlopsPerNs, [&](int64_t r) { std::fill_n(a.probs + r * a.V, a.V, 0.0f); });
  }
  const std::vector<int64_t> offsets = row_offsets(a.cu_seqlens_q_output, a.B, a.R_cap);
  const int64_t ns = a.R_cap / max64(a.B, 1) * a.C_draft * (a.D + 64) / kFlopsPerNs;
  with_float_type(a.path_hidden_type, [&](auto type) {
    each(threads, a.B, ns, [&](int64_t b) {
      const auto at = static_cast<size_t>(b);
      walk<decltype(type)>(a, offsets[at], offsets[at + 1], a.anchor_tokens[b]);
    });
  });
}
SPECDEC_OP(select_draft_path, kPathLimits)

}  // namespace specdec::cpu
