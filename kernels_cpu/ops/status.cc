// update_model_status, schedule_slots, set_stop_sequences: the state of slots.
#include "specdec/status.h"
#include "../op.h"
#include "specdec/schedule.h"
#include "specdec_ops/schedule_slots.h"
#include "specdec_ops/set_stop_sequences.h"
#include "specdec_ops/update_model_status.h"

namespace specdec::cpu {
namespace {

// What `end_at_limit` asks for: ends the accepted tokens with the slot's last.
void end_tokens_of(const UpdateModelStatusArgs& a, SlotStatus* slot, int64_t* tokens, int64_t max_dec_len,
                   int64_t ends) {
  const int64_t emitted = clamp64(slot->accept_num, 0, a.S);
  for (int64_t i = 0; i < emitted; ++i) {
    if (!ends_slot(slot->step_idx, i, max_dec_len, a.end_tokens, ends, tokens + i)) continue;
    slot->accept_num = static_cast<int32_t>(i + 1);
    return;
  }
}

// A slot's stop sequences.
struct Sequences {
  const int64_t* tokens;
  const int32_t* sizes;
  int64_t width;

  int64_t size(int64_t q) const { return clamp64(sizes[q], 0, width); }
  const int64_t* at(int64_t q) const { return tokens + q * width; }
};

}  // namespace

void update_model_status(const UpdateModelStatusArgs& a, Context) {
  bool running = false;
  for (int64_t b = 0; b < a.B; ++b) {
    SlotStatus slot = {a.step_idx[b],           a.seq_lens_encoder[b], a.seq_lens_decoder[b],
                       a.seq_lens_this_time[b], a.accept_num[b],       a.stop_flags[b]};
    int64_t* const tokens = a.accept_tokens + b * a.S;
    const bool paused = a.is_block_step[b];
    const int64_t ends = a.ignore_end != nullptr && a.ignore_end[b] ? 0 : a.E;
    if (a.end_at_limit && !slot.stopped && !paused) end_tokens_of(a, &slot, tokens, a.max_dec_len[b], ends);
    const StatusMoves moves =
        advance_slot(&slot, paused, a.prompt_lens[b], a.max_dec_len[b], a.S, a.L, tokens, a.end_tokens, ends);
    for (int64_t i = 0; i < moves.fits; ++i) a.token_ids_all[b * a.L + moves.start + i] = tokens[i];
    if (moves.count > 0) a.draft_tokens[b * a.S] = tokens[moves.count - 1];
    a.step_idx[b] = slot.step_idx;
    a.seq_lens_encoder[b] = slot.enc;
    a.seq_lens_decoder[b] = slot.dec;
    a.seq_lens_this_time[b] = slot.slt;
    a.accept_num[b] = slot.accept_num;
    a.stop_flags[b] = slot.stopped;
    running |= !slot.stopped;
  }
  *a.has_running = running;
}
SPECDEC_OP(update_model_status, kUnlimited)

void schedule_slots(const ScheduleSlotsArgs& a, Context) {
  for (int64_t b = 0; b < a.B; ++b) {
    const auto action = static_cast<SlotAction>(a.slot_actions[b]);
    const PrefillChunk chunk = prefill_chunk(action, a.chunk_starts[b], a.chunk_lens[b], a.I_cap, a.L);
    std::copy_n(a.token_ids_all + b * a.L + chunk.start, chunk.count, a.input_ids + b * a.I_cap);
    ScheduledSlot slot = {a.step_idx[b],           a.seq_lens_encoder[b], a.seq_lens_decoder[b],
                          a.seq_lens_this_time[b], a.stop_flags[b],       a.is_block_step[b]};
    schedule_slot(&slot, action, chunk, a.chunk_step_idx[b]);
    a.step_idx[b] = slot.step_idx;
    a.seq_lens_encoder[b] = slot.enc;
    a.seq_lens_decoder[b] = slot.dec;
    a.seq_lens_this_time[b] = slot.slt;
    a.stop_flags[b] = slot.stopped;
    a.is_block_step[b] = slot.paused;
  }
}
SPECDEC_OP(schedule_slots, kUnlimited)

void set_stop_sequences(const SetStopSequencesArgs& a, Context) {
  const bool ends = a.end_after_stop && a.E > 0;
  for (int64_t b = 0; b < a.M; ++b) {
    const EmittedTokens emitted(a.prompt_lens[b], a.step_idx[b], a.min_dec_len[b], a.accept_num[b], ends, a.L, a.S);
    int64_t* const accepted = a.accept_tokens + b * a.S;
    const SlotText text = {a.token_ids_all + b * a.L + emitted.prompt_end, accepted, emitted.step};
    const Sequences sequences = {a.stop_seqs + b * a.Q * a.Z, a.stop_seqs_lens + b * a.Q, a.Z};
    const int64_t stop = first_stop(emitted, text, sequences, a.Q);
    if (stop == emitted.count) continue;
    if (!a.keep_tail) std::fill(accepted + stop + 1, accepted + a.S, int64_t{-1});
    a.accept_num[b] = static_cast<int32_t>(stop + 1);
    a.max_dec_len[b] = emitted.step + stop + 1;
    if (ends) accepted[stop] = a.end_tokens[0];
  }
}
SPECDEC_OP(set_stop_sequences, kUnlimited)

}  // namespace specdec::cpu
