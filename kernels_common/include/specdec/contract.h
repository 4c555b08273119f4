// Enumerations and limits of the op contract. Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit.
#pragma once

#include <cstdint>

namespace specdec {

// The dtypes of logits and hidden rows.
enum class FloatType : int32_t { kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2 };

// How `verify_draft_tokens` compares a draft with the target model.
enum class Strategy : int32_t { kGreedy = 0, kTargetMatch = 1, kTopp = 2, kRejection = 3 };

// NORMAL verifies; ACCEPT_ALL (warm-up, benchmarks) and REJECT_ALL do not look at the drafts.
enum class AcceptPolicy : int32_t { kNormal = 0, kAcceptAll = 1, kRejectAll = 2 };

// Which occurrence of the query an n-gram look-up continues from.
enum class MatchPolicy : int32_t { kLeftmost = 0, kLatest = 1 };

// The order in which a backend wants the packed tokens of a step.
enum class TokenOrder : int32_t { kSlot = 0, kPrefillFirst = 1 };

// What `schedule_slots` does to a slot: the values of the tensor `slot_actions`.
enum class SlotAction : int32_t { kKeep = 0, kPrefill = 1, kWait = 2, kStop = 3 };

// What a random number is drawn for: the third word of the Philox counter (contracts, section 0).
enum class Purpose : int32_t { kSample = 0, kAccept = 1, kResidual = 2, kCandidate = 3, kDraft = 4 };

// Log-probabilities of RAW logits, at temperature 1 and without filters, or of the PROCESSED distribution.
enum class LogprobMode : int32_t { kRaw = 0, kProcessed = 1 };

// Largest extents of the contract's symbols that this package is made for.
namespace served {
constexpr int64_t kM = 8192;  // slots allocated (`max_num_seqs`)
constexpr int64_t kS = 32;  // K + 1: the base token and up to K drafts
constexpr int64_t kL = 1048576;  // `max_model_len`
constexpr int64_t kV = 262144;  // vocabulary size
}  // namespace served

constexpr int kMaxNgramSize = 16;

}  // namespace specdec
