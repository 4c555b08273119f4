// The rules of one row over whole ops. The numbers of a Split: `ranks`, the threads that share a row as the cores of a
// cluster do; for apply_penalties also `tile`, the elements each of them sees at a time, and `window`, the tokens that
// are tallied at a time.
#include <pthread.h>
#include <tvm/ffi/function.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "serial_op.h"
#include "specdec/penalty_tile.h"
#include "specdec/row_draw.h"
#include "specdec/row_lists.h"
#include "specdec_ffi/operands.h"
#include "specdec_ops/apply_penalties.h"
#include "specdec_ops/processed_probs.h"
#include "specdec_ops/sample_target.h"
#include "specdec_ops/token_logprobs.h"
#include "specdec_ops/top_p_candidates.h"

namespace specdec::serial {
namespace {

using ffi::Operands;
using ffi::TensorView;

using Shared = RowShared<8>;

constexpr Limit kChunks[] = {{"V", served::kV}};

class Team {
 public:
  Team(int rank, int size, pthread_barrier_t* barrier) : rank_(rank), size_(size), barrier_(barrier) {}
  int rank() const { return rank_; }
  int size() const { return size_; }
  void sync() {
    if (size_ > 1) pthread_barrier_wait(barrier_);
  }

 private:
  int rank_, size_;
  pthread_barrier_t* barrier_;
};

// body(team, shared) on every rank at once. What is shared starts as rubbish, as on a device.
template <class Body>
void run_team(int64_t ranks, Body body) {
  const int size = static_cast<int>(clamp64(ranks, 1, Shared::kRanks));
  const auto memory = std::make_unique<unsigned char[]>(sizeof(Shared));
  std::memset(memory.get(), 0xA5, sizeof(Shared));
  Shared& shared = *reinterpret_cast<Shared*>(memory.get());
  pthread_barrier_t barrier;
  pthread_barrier_init(&barrier, nullptr, static_cast<unsigned>(size));
  std::vector<std::thread> threads;
  for (int rank = 1; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Team team(rank, size, &barrier);
      body(team, shared);
    });
  }
  Team team(0, size, &barrier);
  body(team, shared);
  for (std::thread& thread : threads) thread.join();
  pthread_barrier_destroy(&barrier);
}

// body(float type, team, shared, turn, row) for the rows of logits of the arguments `a`, on every rank; it changes the
// turn with each row that it reads.
template <class Args, class Body>
void each_row(const Args& a, int64_t rows, const Split& split, Body body) {
  with_float_type(a.logits_type, [&](auto type) {
    run_team(split[0], [&](Team& team, Shared& shared) {
      int turn = 0;
      for (int64_t r = 0; r < rows; ++r) body(type, team, shared, turn, r);
    });
  });
}

template <class L>
struct HostRow {
  const typename L::Bits* data;
  int64_t count;
  int first, last;

  HostRow(const void* rows, int64_t row, int64_t width, const Team& team)
      : data(static_cast<const typename L::Bits*>(rows) + row * width),
        count(width),
        first(first_chunk(width, team.rank(), team.size())),
        last(first_chunk(width, team.rank() + 1, team.size())) {}

  int64_t size() const { return count; }
  int begin() const { return first; }
  int end() const { return last; }
  const typename L::Bits* load(int c, int* n) const {
    const int64_t at = int64_t{c} << kChunkBits;
    *n = static_cast<int>(min64(kChunkIds, count - at));
    return data + at;
  }
};

// Of the arguments of either op that samples.
template <class Args>
SamplingParams params_of(const Args& a, int64_t r) {
  return {a.row_temperature[r], a.row_top_p[r], a.row_min_p[r], a.row_top_k[r]};
}

struct TokenSink {
  const SampleTargetArgs& a;
  int64_t row;

  void token(int64_t id) { a.target_tokens[row] = id; }
  void logprob(float value) { a.logprobs[row] = value; }
  void rank(int64_t value) { a.ranks[row] = value; }
};

void sample_target(const SampleTargetArgs& a, const Split& split) {
  const AskedLogprob asked{a.logprobs != nullptr, a.ranks != nullptr, a.logprob_mode};
  each_row(a, a.R_cap, split, [&](auto type, Team& team, Shared& shared, int& turn, int64_t r) {
    using L = decltype(type);
    TokenSink sink{a, r};
    if (a.position[r] < 0) {
      if (team.rank() == 0) tell_nothing(asked, 0.0f, sink);
      return;
    }
    HostRow<L> row(a.logits, r, a.V, team);
    const RowSeed seed{a.row_seed[r], a.position[r], a.purpose};
    sample_row<L>(team, row, shared, turn ^= 1, params_of(a, r), seed, asked, sink);
  });
}
SPECDEC_OP(sample_target, kChunks)

// The ids that an unfiltered row at temperature 1 gives for points of one's own choice.
void row_draw(TensorView logits, TensorView points, TensorView found) {
  Operands op("row_draw");
  const int64_t v = op.extent(logits, 0), count = op.extent(points, 0);
  const auto* data = op.data<float>("logits", logits, {v});
  const auto* wanted = op.data<uint64_t>("points", points, {count});
  auto* out = op.data<int64_t>("found", found, {count});
  run_team(1, [&](Team& team, Shared& shared) {
    HostRow<Float32> row(data, 0, v, team);
    const RowTop top = read_row<Float32>(team, row, shared, 0, 1.0f);
    RowDraw from;
    filtered_row<Float32>(team, row, shared, 0, {1.0f, 1.0f, 0.0f, 0}, top, true, &from);
    for (int64_t i = 0; i < count; ++i) out[i] = draw_row<Float32>(team, row, shared, from, wanted[i]).id;
  });
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(row_draw, row_draw)

struct ProbsSink {
  float* out;

  void append(const Block& values, int count) {
    std::memcpy(out, values.at, sizeof(float) * static_cast<size_t>(count));
    out += count;
  }
};

void processed_probs(const ProcessedProbsArgs& a, const Split& split) {
  each_row(a, a.R_cap, split, [&](auto type, Team& team, Shared& shared, int& turn, int64_t r) {
    using L = decltype(type);
    HostRow<L> row(a.logits, r, a.V, team);
    const int64_t begin = int64_t{row.begin()} << kChunkBits, end = min64(int64_t{row.end()} << kChunkBits, a.V);
    ProbsSink sink{a.probs + r * a.V + begin};
    if (a.position[r] >= 0 && row_probs<L>(team, row, shared, turn ^= 1, params_of(a, r), sink)) return;
    for (int64_t i = begin; i < end; ++i) a.probs[r * a.V + i] = 0.0f;
  });
}
SPECDEC_OP(processed_probs, kChunks)

struct CandidateSink {
  float* scores;
  int64_t* ids;
  int32_t* lens;

  void block(int64_t at, const float* values, const int64_t* tokens, int n) {
    for (int i = 0; i < n; ++i) scores[at + i] = values[i], ids[at + i] = tokens[i];
  }
  void reached(int64_t count) { *lens = static_cast<int32_t>(count); }
};

void top_p_candidates(const TopPCandidatesArgs& a, const Split& split) {
  run_team(split[0], [&](Team& team, Shared& shared) {
    int turn = 0;
    for (int64_t r = 0; r < a.R_cap; ++r) {
      CandidateSink sink{a.candidate_scores + r * a.C, a.candidate_ids + r * a.C, a.candidate_lens + r};
      const int64_t b = a.batch_id_per_token_output[r];
      if (b < 0 || b >= a.M) {
        if (team.rank() > 0) continue;
        for (int64_t i = 0; i < a.C; ++i) sink.scores[i] = 0.0f, sink.ids[i] = -1;
        sink.reached(0);
        continue;
      }
      HostRow<Probability> row(a.probs, r, a.V, team);
      row_candidates(team, row, shared, turn ^= 1, a.C, a.top_p[b], sink);
    }
  });
}
SPECDEC_OP(top_p_candidates, kChunks)

// Fills one entry, which is the tail's to begin with; column 0 holds the chosen token before.
struct LogprobSink {
  int64_t* ids;
  float* logprobs;
  int64_t* rank;
  int64_t width;

  void undefined() {
    for (int64_t i = 0; i < width; ++i) logprobs[i] = -FLT_MAX;
  }
  void chosen(float logprob, int64_t count) { logprobs[0] = logprob, *rank = count; }
  void block(int64_t at, const float* logits, const int64_t* tokens, int n, const RowLogprobs& of_row) {
    for (int i = 0; i < n; ++i) ids[1 + at + i] = tokens[i], logprobs[1 + at + i] = of_row.of(logits[i]);
  }
};

void token_logprobs(const TokenLogprobsArgs& a, const Split& split) {
  const int64_t accepted = clamp64(a.cu_batch_token_offset[a.B], 0, a.A_cap);
  each_row(a, a.A_cap, split, [&](auto type, Team& team, Shared& shared, int& turn, int64_t entry) {
    using L = decltype(type);
    LogprobSink sink{a.ids + entry * a.N, a.logprobs + entry * a.N, a.ranks + entry, a.N};
    const int64_t r = a.rows[entry], token = a.token_ids[entry];
    const bool computed = entry < accepted && r >= 0 && r < a.R_cap && token >= 0 && token < a.V;
    if (team.rank() == 0) {
      for (int64_t i = 0; i < a.N; ++i) sink.ids[i] = -1, sink.logprobs[i] = 0.0f;
      if (computed) sink.ids[0] = token;
      *sink.rank = -1;
    }
    if (!computed) return;
    HostRow<L> row(a.logits, r, a.V, team);
    row_logprobs<L>(team, row, shared, turn ^= 1, L::widen(row.data[token]), a.N - 1, sink);
  });
}
SPECDEC_OP(token_logprobs, kChunks)

struct HostTable {
  std::vector<int32_t> tallies;

  int32_t add(int64_t i, int32_t n) { return __atomic_fetch_add(at(i), n, __ATOMIC_RELAXED); }
  int32_t mark(int64_t i, int32_t bits) { return __atomic_fetch_or(at(i), bits, __ATOMIC_RELAXED); }
  int32_t take(int64_t i) { return __atomic_exchange_n(at(i), 0, __ATOMIC_RELAXED); }
  int32_t take_alone(int64_t i) { return std::exchange(*at(i), 0); }

 private:
  int32_t* at(int64_t i) { return &tallies[static_cast<size_t>(i)]; }
};

struct HostHistory {
  const int64_t *ids, *drafts;
  int64_t begin, end, step;

  template <class Visitor>
  void visit(Visitor& v) {
    for (int64_t at = begin; at < end; at += step) v.tile(ids + at, at, static_cast<int>(min64(step, end - at)));
  }
  template <class Visitor>
  void visit_drafts(Visitor& v, int64_t count) {
    if (count > 0) v.tile(drafts + 1, 0, static_cast<int>(count));
  }
};

template <class L>
struct HostLogits {
  typename L::Bits* data;
  int64_t width;

  float load(int64_t row, int64_t token) const { return L::widen(data[row * width + token]); }
  void store(int64_t row, int64_t token, float x) { data[row * width + token] = L::narrow(x); }
};

// Rows in place, and all of a history for each tile of ids.
template <class L>
struct HostPenaltyTile : HostHistory {
  HostLogits<L> logits;

  typename L::Bits* load(int64_t row, int64_t id, int) { return logits.data + row * logits.width + id; }
  void store(int64_t, int64_t, int) {}
};

// A `window` of 0: by tiles of ids, whatever the length of the history up to kMostTileTallies.
void apply_penalties(const ApplyPenaltiesArgs& a, const Split& split) {
  const auto [ranks, tile, window] = split;
  HostTable table{std::vector<int32_t>(static_cast<size_t>(window), 0)};
  with_float_type(a.logits_type, [&, tile = tile, window = window](auto kind) {
    using L = decltype(kind);
    run_team(split[0], [&](Team& team, Shared&) {
      HostLogits<L> values{static_cast<typename L::Bits*>(a.logits), a.V};
      for (int64_t first = 0, stop; first < a.R_cap; first = stop) {
        const int32_t b = a.batch_id_per_token_output[first];
        for (stop = first + 1; stop < a.R_cap && a.batch_id_per_token_output[stop] == b;) ++stop;
        if (b < 0 || b >= a.B) continue;
        const PenaltyRows mine{first, stop, a.cu_seqlens_q_output[b], a.S};
        const PenaltyParams params{a.repetition[b], a.frequency[b], a.presence[b]};
        const int64_t *text = a.token_ids_all + b * a.L, *drafts = a.draft_tokens + b * a.S;
        if (params.any()) {
          const History bounds = history_bounds(a.L, a.prompt_lens[b], a.step_idx[b]);
          if (window == 0) {
            HostPenaltyTile<L> part{{text, drafts, 0, bounds.end, tile}, values};
            for (int64_t id = team.rank() * kPenaltyTile; id < a.V; id += team.size() * kPenaltyTile) {
              penalize_tile<L>(id, static_cast<int>(min64(kPenaltyTile, a.V - id)), part, bounds.prompt_end, params,
                               mine, part, drafts);
            }
            team.sync();
          } else {
            HostHistory history{text, drafts, rank_tokens(bounds.end, team.rank(), team.size()),
                                rank_tokens(bounds.end, team.rank() + 1, team.size()), tile};
            std::vector<int32_t> list(static_cast<size_t>(tile));
            const bool list_holds = rank_tokens(bounds.end, 1, team.size()) + a.S <= tile;
            penalize_rows(team, table, window, a.V, history, bounds.prompt_end, params, mine, values, drafts,
                          list.data(), static_cast<int>(tile), list_holds);
          }
        }
        const int64_t *bad = a.bad_tokens + b * a.W, *ends = a.end_tokens;
        forbid_tokens(team, a.V, bad, a.W, ends, a.E, a.step_idx[b], a.min_dec_len[b], mine, values);
      }
    });
  });
}
SPECDEC_OP(apply_penalties, kUnlimited)

}  // namespace
}  // namespace specdec::serial
