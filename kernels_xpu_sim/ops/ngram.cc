#include "ops.h"

#include "../kernels/ngram_match.xpu"

namespace specdec::xpu {
namespace {

template <bool kHybrid>
void find_drafts(const ProposeArgs& a, const ProposeTensors& t, const LaunchOptions& options) {
  if (a.index != nullptr) {
    launch_items(options, a.slots, 1, ngram_lookup_kernel<kHybrid>, t, a.index, a.index_bytes);
  } else {
    launch(options, a.slots, parts_of(a.row_width, 4096), ngram_search_kernel<kHybrid>, t);
  }
}

}  // namespace

void propose(const ProposeArgs& a, const LaunchOptions& options) {
  ProposeTensors t;
  t.token_ids_all = a.token_ids_all;
  t.prompt_lens = a.prompt_lens;
  t.step_idx = a.step_idx;
  t.draft_token_num = a.draft_token_num;
  t.seq_lens_encoder = a.seq_lens_encoder;
  t.seq_lens_decoder = a.seq_lens_decoder;
  t.max_dec_len = a.max_dec_len;
  t.draft_tokens = a.draft_tokens;
  t.seq_lens_this_time = a.seq_lens_this_time;
  t.slots = a.slots;
  t.draft_width = a.draft_width;
  t.row_width = a.row_width;
  t.max_size = a.max_size;
  t.min_size = a.min_size;
  t.policy = static_cast<MatchPolicy>(a.policy);
  if (a.hybrid) {
    find_drafts<true>(a, t, options);
  } else {
    find_drafts<false>(a, t, options);
  }
  if (a.pad_to_max) {
    launch(options, 1, parts_of(a.slots, 8), ngram_grant_padded_kernel, a.seq_lens_encoder, a.seq_lens_decoder,
           a.draft_tokens, a.seq_lens_this_time, a.slots, a.draft_width, a.token_budget);
  } else {
    launch(options, 1, 1, ngram_grant_kernel, a.seq_lens_encoder, a.seq_lens_decoder, a.seq_lens_this_time, a.slots,
           a.token_budget);
  }
}

void ngram_index_update(const IndexUpdateArgs& a, const LaunchOptions& options) {
  launch_items(options, a.slots, 1, ngram_index_update_kernel, a.index, a.token_ids_all, a.prompt_lens, a.step_idx,
               a.seq_lens_encoder, a.seq_lens_decoder, a.slots, a.row_width, a.index_bytes, a.max_size, a.min_size);
}

void ngram_index_reset(const IndexResetArgs& a, const LaunchOptions& options) {
  launch_items(options, a.slots * parts_of(a.index_bytes, 1 << 16), 1, ngram_index_reset_kernel, a.index,
               a.reset_slots, a.slots, a.index_bytes);
}

}  // namespace specdec::xpu
