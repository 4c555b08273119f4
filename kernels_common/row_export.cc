// The rules of one row over whole ops, for the tests that compare them with the reference. The arguments are those of
// the ops, operands in OpSpec order; then `ranks`, the threads that share a row as the cores of a cluster do, and
// `tile`, the elements each of them sees at a time.
#include <pthread.h>
#include <tvm/ffi/function.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "specdec/penalty_tile.h"
#include "specdec/row_list.h"
#include "specdec/row_sample.h"
#include "specdec_ffi/operands.h"

namespace {

using specdec::ffi::FloatType;
using specdec::ffi::Operands;
using specdec::ffi::TensorView;
using namespace specdec;

using Shared = RowShared<8>;

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

// body(Float32{} | Float16{} | BFloat16{})
template <class Body>
void with_type(FloatType type, Body body) {
  if (type == FloatType::kFloat32) return body(Float32{});
  if (type == FloatType::kFloat16) return body(Float16{});
  body(BFloat16{});
}

template <class L>
struct HostRow {
  const typename L::Bits* data;
  int64_t count, begin, end, step;

  HostRow(const void* rows, int64_t row, int64_t width, int64_t tile, const Team& team)
      : data(static_cast<const typename L::Bits*>(rows) + row * width),
        count(width),
        begin(rank_begin(width, team.rank(), team.size())),
        end(rank_begin(width, team.rank() + 1, team.size())),
        step(tile) {}

  int64_t size() const { return count; }
  template <class Visitor>
  void visit(Visitor& v) {
    for (int64_t at = begin; at < end; at += step) {
      if (!v.tile(data + at, at, static_cast<int>(min64(step, end - at)))) return;
    }
  }
};

struct SamplingRows {
  const float *temperature, *top_p, *min_p;
  const int32_t* top_k;

  SamplingParams operator[](int64_t r) const { return {temperature[r], top_p[r], min_p[r], top_k[r]}; }
};

struct TokenSink {
  int64_t* out;
  void token(int64_t id) { *out = id; }
};

void sample_target(TensorView logits, TensorView row_temperature, TensorView row_top_p, TensorView row_top_k,
                   TensorView row_min_p, TensorView row_seed, TensorView position, TensorView target_tokens,
                   int64_t ranks, int64_t tile) {
  const Operands op("sample_target");
  const int64_t rows = op.extent(logits, 0), v = op.extent(logits, 1);
  FloatType type;
  const void* data = op.floats("logits", logits, {rows, v}, &type);
  const SamplingRows params{op.data<float>("row_temperature", row_temperature, {rows}),
                            op.data<float>("row_top_p", row_top_p, {rows}),
                            op.data<float>("row_min_p", row_min_p, {rows}),
                            op.data<int32_t>("row_top_k", row_top_k, {rows})};
  const auto* seeds = op.data<int64_t>("row_seed", row_seed, {rows});
  const auto* positions = op.data<int64_t>("position", position, {rows});
  auto* out = op.data<int64_t>("target_tokens", target_tokens, {rows});
  with_type(type, [&](auto kind) {
    using L = decltype(kind);
    run_team(ranks, [&](Team& team, Shared& shared) {
      int turn = 0;
      for (int64_t r = 0; r < rows; ++r) {
        TokenSink sink{out + r};
        if (positions[r] < 0) {
          if (team.rank() == 0) sink.token(-1);
          continue;
        }
        HostRow<L> row(data, r, v, tile, team);
        sample_row<L>(team, row, shared, turn ^= 1, params[r], seeds[r], positions[r], sink);
      }
    });
  });
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(sample_target, sample_target)

// The first id of a row whose inclusive prefix sum of masses exceeds a point, for points of one's own choice.
void row_draw(TensorView logits, TensorView points, TensorView found, int64_t tile) {
  const Operands op("row_draw");
  const int64_t v = op.extent(logits, 0), count = op.extent(points, 0);
  const auto* data = op.data<float>("logits", logits, {v});
  const auto* wanted = op.data<uint64_t>("points", points, {count});
  auto* out = op.data<int64_t>("found", found, {count});
  run_team(1, [&](Team& team, Shared& shared) {
    HostRow<Float32> row(data, 0, v, tile, team);
    const Softmax softmax{key_value(row_top<Float32>(team, row, shared, 0).key), 1.0f};
    for (int64_t i = 0; i < count; ++i) {
      DrawVisitor<Float32> draw{{softmax, keep_all(), 0}, wanted[i], 0, -1};
      row.visit(draw);
      out[i] = draw.found;
    }
  });
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(row_draw, row_draw)

struct ProbsSink {
  float* out;

  void append(const Chunk& values, int count) {
    std::memcpy(out, values.at, sizeof(float) * static_cast<size_t>(count));
    out += count;
  }
};

void processed_probs(TensorView logits, TensorView row_temperature, TensorView row_top_p, TensorView row_top_k,
                     TensorView row_min_p, TensorView position, TensorView probs, int64_t ranks, int64_t tile) {
  const Operands op("processed_probs");
  const int64_t rows = op.extent(logits, 0), v = op.extent(logits, 1);
  FloatType type;
  const void* data = op.floats("logits", logits, {rows, v}, &type);
  const SamplingRows params{op.data<float>("row_temperature", row_temperature, {rows}),
                            op.data<float>("row_top_p", row_top_p, {rows}),
                            op.data<float>("row_min_p", row_min_p, {rows}),
                            op.data<int32_t>("row_top_k", row_top_k, {rows})};
  const auto* positions = op.data<int64_t>("position", position, {rows});
  auto* out = op.data<float>("probs", probs, {rows, v});
  with_type(type, [&](auto kind) {
    using L = decltype(kind);
    run_team(ranks, [&](Team& team, Shared& shared) {
      int turn = 0;
      for (int64_t r = 0; r < rows; ++r) {
        HostRow<L> row(data, r, v, tile, team);
        ProbsSink sink{out + r * v + row.begin};
        if (positions[r] >= 0 && row_probs<L>(team, row, shared, turn ^= 1, params[r], sink)) continue;
        for (int64_t i = row.begin; i < row.end; ++i) out[r * v + i] = 0.0f;
      }
    });
  });
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(processed_probs, processed_probs)

struct CandidateSink {
  float* scores;
  int64_t* ids;
  int32_t* lens;

  void block(int64_t at, const float* values, const int64_t* tokens, int n) {
    for (int i = 0; i < n; ++i) scores[at + i] = values[i], ids[at + i] = tokens[i];
  }
  void reached(int64_t count) { *lens = static_cast<int32_t>(count); }
};

void top_p_candidates(TensorView probs, TensorView top_p, TensorView batch_id_per_token_output,
                      TensorView candidate_scores, TensorView candidate_ids, TensorView candidate_lens, int64_t ranks,
                      int64_t tile) {
  const Operands op("top_p_candidates");
  const int64_t rows = op.extent(probs, 0), v = op.extent(probs, 1), slots = op.extent(top_p, 0);
  const int64_t c = op.extent(candidate_ids, 1);
  const auto* data = op.data<float>("probs", probs, {rows, v});
  const auto* nucleus = op.data<float>("top_p", top_p, {slots});
  const auto* slot_of_row = op.data<int32_t>("batch_id_per_token_output", batch_id_per_token_output, {rows});
  auto* scores = op.data<float>("candidate_scores", candidate_scores, {rows, c});
  auto* ids = op.data<int64_t>("candidate_ids", candidate_ids, {rows, c});
  auto* lens = op.data<int32_t>("candidate_lens", candidate_lens, {rows});
  run_team(ranks, [&](Team& team, Shared& shared) {
    for (int64_t r = 0; r < rows; ++r) {
      CandidateSink sink{scores + r * c, ids + r * c, lens + r};
      const int64_t b = slot_of_row[r];
      if (b < 0 || b >= slots) {
        if (team.rank() > 0) continue;
        for (int64_t i = 0; i < c; ++i) sink.scores[i] = 0.0f, sink.ids[i] = -1;
        sink.reached(0);
        continue;
      }
      HostRow<Probability> row(data, r, v, tile, team);
      row_candidates(team, row, shared, c, nucleus[b], sink);
    }
  });
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(top_p_candidates, top_p_candidates)

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

void token_logprobs(TensorView logits, TensorView rows, TensorView token_ids, TensorView cu_batch_token_offset,
                    TensorView ids, TensorView logprobs, TensorView ranks_out, int64_t ranks, int64_t tile) {
  const Operands op("token_logprobs");
  const int64_t row_count = op.extent(logits, 0), v = op.extent(logits, 1), entries = op.extent(token_ids, 0);
  const int64_t n = op.extent(ids, 1), slots = op.extent(cu_batch_token_offset, 0) - 1;
  FloatType type;
  const void* data = op.floats("logits", logits, {row_count, v}, &type);
  const auto* row_of = op.data<int32_t>("rows", rows, {entries});
  const auto* tokens = op.data<int64_t>("token_ids", token_ids, {entries});
  const auto* offsets = op.data<int32_t>("cu_batch_token_offset", cu_batch_token_offset, {slots + 1});
  auto* all_ids = op.data<int64_t>("ids", ids, {entries, n});
  auto* all_logprobs = op.data<float>("logprobs", logprobs, {entries, n});
  auto* all_ranks = op.data<int64_t>("ranks", ranks_out, {entries});
  const int64_t accepted = clamp64(offsets[slots], 0, entries);
  with_type(type, [&](auto kind) {
    using L = decltype(kind);
    run_team(ranks, [&](Team& team, Shared& shared) {
      int turn = 0;
      for (int64_t a = 0; a < entries; ++a) {
        LogprobSink sink{all_ids + a * n, all_logprobs + a * n, all_ranks + a, n};
        const int64_t r = row_of[a], token = tokens[a];
        const bool computed = a < accepted && r >= 0 && r < row_count && token >= 0 && token < v;
        if (team.rank() == 0) {
          for (int64_t i = 0; i < n; ++i) sink.ids[i] = -1, sink.logprobs[i] = 0.0f;
          if (computed) sink.ids[0] = token;
          *sink.rank = -1;
        }
        if (!computed) continue;
        HostRow<L> row(data, r, v, tile, team);
        row_logprobs<L>(team, row, shared, turn ^= 1, L::widen(row.data[token]), n - 1, sink);
      }
    });
  });
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(token_logprobs, token_logprobs)

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
struct HostPenaltyTile {
  const int64_t* ids;
  int64_t end, step;
  HostLogits<L> logits;

  template <class Visitor>
  void visit(Visitor& v) {
    for (int64_t at = 0; at < end; at += step) v.tile(ids + at, at, static_cast<int>(min64(step, end - at)));
  }
  typename L::Bits* load(int64_t row, int64_t id, int) { return logits.data + row * logits.width + id; }
  void store(int64_t, int64_t, int) {}
};

// `window`: tokens tallied at a time; 0: by tiles of ids, whatever the length of the history up to kMostTileTallies.
void apply_penalties(TensorView logits, TensorView token_ids_all, TensorView prompt_lens, TensorView step_idx,
                     TensorView draft_tokens, TensorView cu_seqlens_q_output, TensorView batch_id_per_token_output,
                     TensorView repetition, TensorView frequency, TensorView presence, TensorView bad_tokens,
                     TensorView end_tokens, TensorView min_dec_len, int64_t ranks, int64_t tile, int64_t window) {
  const Operands op("apply_penalties");
  const int64_t rows = op.extent(logits, 0), v = op.extent(logits, 1), m = op.extent(token_ids_all, 0);
  const int64_t l = op.extent(token_ids_all, 1), s = op.extent(draft_tokens, 1), w = op.extent(bad_tokens, 1);
  const int64_t slots = op.extent(cu_seqlens_q_output, 0) - 1, end_count = op.extent(end_tokens, 0);
  FloatType type;
  void* data = op.floats("logits", logits, {rows, v}, &type);
  const auto* texts = op.data<int64_t>("token_ids_all", token_ids_all, {m, l});
  const auto* prompts = op.data<int64_t>("prompt_lens", prompt_lens, {m});
  const auto* steps = op.data<int64_t>("step_idx", step_idx, {m});
  const auto* all_drafts = op.data<int64_t>("draft_tokens", draft_tokens, {m, s});
  const auto* offsets = op.data<int32_t>("cu_seqlens_q_output", cu_seqlens_q_output, {slots + 1});
  const auto* slot_of_row = op.data<int32_t>("batch_id_per_token_output", batch_id_per_token_output, {rows});
  const auto* r = op.data<float>("repetition", repetition, {m});
  const auto* f = op.data<float>("frequency", frequency, {m});
  const auto* p = op.data<float>("presence", presence, {m});
  const auto* bad = op.data<int64_t>("bad_tokens", bad_tokens, {m, w});
  const auto* ends = op.data<int64_t>("end_tokens", end_tokens, {end_count});
  const auto* least = op.data<int64_t>("min_dec_len", min_dec_len, {m});
  HostTable table{std::vector<int32_t>(static_cast<size_t>(window), 0)};
  with_type(type, [&](auto kind) {
    using L = decltype(kind);
    run_team(ranks, [&](Team& team, Shared&) {
      HostLogits<L> values{static_cast<typename L::Bits*>(data), v};
      for (int64_t first = 0, stop; first < rows; first = stop) {
        const int32_t b = slot_of_row[first];
        for (stop = first + 1; stop < rows && slot_of_row[stop] == b;) ++stop;
        if (b < 0 || b >= slots) continue;
        const PenaltyRows mine{first, stop, offsets[b], s};
        const PenaltyParams params{r[b], f[b], p[b]};
        const int64_t* drafts = all_drafts + b * s;
        if (params.any()) {
          const History bounds = history_bounds(l, prompts[b], steps[b]);
          if (window == 0) {
            HostPenaltyTile<L> part{texts + b * l, bounds.end, tile, values};
            for (int64_t id = team.rank() * kPenaltyTile; id < v; id += team.size() * kPenaltyTile) {
              penalize_tile<L>(id, static_cast<int>(min64(kPenaltyTile, v - id)), part, bounds.prompt_end, params, mine,
                               part, drafts);
            }
            team.sync();
          } else {
            HostHistory history{texts + b * l, drafts, rank_begin(bounds.end, team.rank(), team.size()),
                                rank_begin(bounds.end, team.rank() + 1, team.size()), tile};
            std::vector<int32_t> list(static_cast<size_t>(tile));
            const bool list_holds = rank_begin(bounds.end, 1, team.size()) + s <= tile;
            penalize_rows(team, table, window, v, history, bounds.prompt_end, params, mine, values, drafts,
                          list.data(), static_cast<int>(tile), list_holds);
          }
        }
        const int64_t* slot_bad = bad + b * w;
        forbid_tokens(team, v, slot_bad, w, ends, end_count, steps[b], least[b], mine, values);
      }
    });
  });
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(apply_penalties, apply_penalties)

}  // namespace
