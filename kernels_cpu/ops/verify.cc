// verify_draft_tokens: slots over the threads.
#include "specdec/verify.h"

#include <vector>

#include "../op.h"
#include "specdec/rows/row_loops.h"
#include "specdec_ops/verify_draft_tokens.h"

namespace specdec::cpu {
namespace {

// Where a slot's tokens go.
struct TokenSink {
  int64_t* to;

  void append(int64_t token) { *to++ = token; }
};

using End = const int64_t*;
using SlotEmission = Emission<const End, TokenSink>;

// Verifies slot b: `verify(slot, drafts, out)` emits.
template <class Verify>
void verify_slot(const VerifyDraftTokensArgs& a, int64_t b, Verify verify) {
  int64_t* const tokens = a.accept_tokens + b * a.S;
  TokenSink sink = {tokens};
  if (b < a.B && a.R_cap > 0) {
    const VerifyState state = load_state(a, b);
    if (verify_emits(state)) {
      const VerifySlot slot(state, a.S, a.R_cap);
      const End& ends = a.end_tokens;
      const int64_t end_count = a.ignore_end != nullptr && a.ignore_end[b] ? 0 : a.E;
      SlotEmission out(ends, end_count, slot.limit, a.accept_policy == AcceptPolicy::kAcceptAll, a.end_at_limit, sink);
      verify(slot, a.draft_tokens + b * a.S + 1, out);
    }
  }
  a.accept_num[b] = static_cast<int32_t>(sink.to - tokens);
  std::fill(sink.to, tokens + a.S, int64_t{-1});
}

// By the target's tokens or candidates: verifier(b).
template <class VerifierOf>
void verify_by(const VerifyDraftTokensArgs& a, VerifierOf verifier_of) {
  for (int64_t b = 0; b < a.M; ++b) {
    verify_slot(a, b, [&](const VerifySlot& slot, const int64_t* drafts, SlotEmission& out) {
      auto verifier = verifier_of(b);
      verify_drafts(slot, a.accept_policy, verifier, drafts, out);
      if (!out.stopped()) out.emit(verifier.token(slot, out.count()));
    });
  }
}

constexpr int64_t kPiece = 1024;  // tokens whose mass is remembered

// A block of prob_masses in two parts, which 32-bit sums hold: high * 2^17 + low.
struct MassParts {
  Wide<int32_t, kBlock> high, low;

  // `count` probabilities, then 0.
  void load(const float* p, int64_t count) {
    Block block;
    load_block(Float32{}, p, static_cast<int>(count), block);
    for (int j = 0; j < kBlock; ++j) {
      // As integers, which become vector code: negative numbers and NaN are 0.
      constexpr int32_t kOne = detail::kOneBits, kInf = detail::kInfBits;
      const int32_t bits = static_cast<int32_t>(f32_bits(block[j])), positive = bits > 0 ? bits : 0;
      const int32_t clamped = (positive < kOne ? positive : kOne) & -static_cast<int32_t>(bits <= kInf);
      const float scaled = mul_rn(f32_from_bits(static_cast<uint32_t>(clamped)), 0x1p40f);
      high[j] = static_cast<int32_t>(mul_rn(scaled, 0x1p-17f));
      low[j] = static_cast<int32_t>(sub_rn(scaled, mul_rn(static_cast<float>(high[j]), 0x1p17f)));
    }
  }
  // residual_mass of each.
  void take(const MassParts& other) {
    for (int j = 0; j < kBlock; ++j) {
      const int32_t upper = high[j] - other.high[j], lower = low[j] - other.low[j];
      const int32_t more = -static_cast<int32_t>((upper > 0) | ((upper == 0) & (lower > 0)));
      high[j] = upper & more;
      low[j] = lower & more;
    }
  }
  int64_t sum() const {
    int32_t upper = 0, lower = 0;
    for (int j = 0; j < kBlock; ++j) upper += high[j];
    for (int j = 0; j < kBlock; ++j) lower += low[j];
    return (int64_t{upper} << 17) + lower;
  }
};

// The residual mass of `count` tokens; `q`: null for none.
SPECDEC_VECTOR uint64_t piece_mass(const float* p, const float* q, int64_t count) {
  uint64_t sum = 0;
  for (int64_t k = 0; k < count; k += kBlock) {
    MassParts have;
    have.load(p + k, count - k);
    if (q != nullptr) {
      MassParts taken;
      taken.load(q + k, count - k);
      have.take(taken);
    }
    sum += static_cast<uint64_t>(have.sum());
  }
  return sum;
}

// A draw from what is left of a row of p (see ResidualTile).
int64_t draw_residual(const ResidualTile& row, uint64_t random) {
  const auto piece = [&](int64_t at) {
    return ResidualTile{row.p + at, row.q == nullptr ? nullptr : row.q + at, at, min64(kPiece, row.count - at),
                        row.one_hot};
  };
  std::vector<uint64_t> masses;
  uint64_t total = 0;
  for (int64_t at = 0; at < row.count; at += kPiece) {
    const ResidualTile tile = piece(at);
    uint64_t mass = piece_mass(tile.p, tile.q, tile.count);
    if (row.one_hot >= at && row.one_hot < at + tile.count) mass -= prob_mass(row.p[row.one_hot]);
    masses.push_back(mass);
    total += mass;
  }
  if (total == 0) {
    ResidualSum sum = no_residual();
    sum.add(row);
    return sum.best;
  }
  const uint64_t point = draw_point(random, total);
  uint64_t below = 0;
  size_t i = 0;
  for (; below + masses[i] <= point; ++i) below += masses[i];
  return residual_find(piece(static_cast<int64_t>(i) * kPiece), point, &below);
}

void verify_by_probs(const VerifyDraftTokensArgs& a, Context threads) {
  each(threads, a.M, a.V / 2, [&](int64_t b) {
    verify_slot(a, b, [&](const VerifySlot& slot, const int64_t* drafts, SlotEmission& out) {
      const float* const q = a.draft_probs == nullptr ? nullptr : a.draft_probs + b * (a.S - 1) * a.V;
      VerifierByProbs<const float* const, const float* const> verifier = {a.target_probs, q == nullptr ? nullptr : &q,
                                                                          a.V};
      const bool rejected = verify_drafts(slot, a.accept_policy, verifier, drafts, out);
      if (out.stopped()) return;
      const int64_t i = out.count();
      const ResidualTile row = {a.target_probs + slot.row(i) * a.V, rejected && q != nullptr ? q + i * a.V : nullptr, 0,
                                a.V, rejected && q == nullptr ? drafts[i] : -1};
      out.emit(draw_residual(row, slot.random(i, Purpose::kResidual).u64()));
    });
  });
}

}  // namespace

void verify_draft_tokens(const VerifyDraftTokensArgs& a, Context threads) {
  switch (a.strategy) {
    case Strategy::kGreedy:
    case Strategy::kTargetMatch:
      return verify_by(a, [&](int64_t) { return VerifierByToken<const int64_t* const>{a.target_tokens}; });
    case Strategy::kTopp:
      return verify_by(a, [&](int64_t b) {
        return VerifierByCandidates<const int64_t* const, const float* const, const int32_t* const>{
            a.candidate_ids, a.candidate_scores, a.candidate_lens, a.C, a.verify_window, a.top_p[b]};
      });
    case Strategy::kRejection: return verify_by_probs(a, threads);
  }
}
SPECDEC_OP(verify_draft_tokens, kUnlimited)

}  // namespace specdec::cpu
