// The ops of a compiled backend: plain arguments, no framework. A backend has, in its own namespace, one function per
// entry of SPECDEC_OPS, which launches the op on those arguments.
#pragma once

#include "specdec_ops/gather_accepted.h"
#include "specdec_ops/ngram.h"
#include "specdec_ops/sampling.h"
#include "specdec_ops/sampling_params.h"
#include "specdec_ops/schedule_slots.h"
#include "specdec_ops/set_stop_sequences.h"
#include "specdec_ops/status.h"
#include "specdec_ops/step_index.h"
#include "specdec_ops/verify.h"

// X(function, arguments). `propose` is ngram_match and hybrid_mtp_ngram.
#define SPECDEC_OPS(X)                             \
  X(prepare_inputs, PrepareInputsArgs)             \
  X(adjust_batch, PermuteRowsArgs)                 \
  X(recover_batch, PermuteRowsArgs)                \
  X(gather_next_token, GatherNextTokenArgs)        \
  X(build_sampling_params, SamplingParamsArgs)     \
  X(apply_penalties, ApplyPenaltiesArgs)           \
  X(sample_target, SampleTargetArgs)               \
  X(processed_probs, ProcessedProbsArgs)           \
  X(top_p_candidates, TopPCandidatesArgs)          \
  X(verify_draft_tokens, VerifyArgs)               \
  X(update_model_status, StatusArgs)               \
  X(propose, ProposeArgs)                          \
  X(ngram_index_update, IndexUpdateArgs)           \
  X(ngram_index_reset, IndexResetArgs)             \
  X(gather_accepted, GatherAcceptedArgs)           \
  X(token_logprobs, TokenLogprobsArgs)             \
  X(schedule_slots, ScheduleSlotsArgs)             \
  X(set_stop_sequences, SetStopSequencesArgs)
