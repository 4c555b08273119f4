#include <algorithm>
#include <cstring>
#include <utility>

#include "../random.h"
#include "../report.h"
#include "state.h"

namespace xpu_sim::rt::strict {

namespace {

constexpr uint32_t kDrawn = 0xA5A5A5A5u;

// None is what the strict build fills memory with. Decisions on zero, on one, on the sign and on the size fall
// differently, of integers and of floats; also of sums over cores, which wrap with large ones. The last is drawn.
constexpr uint32_t kValues[] = {0, 1, 0xFFFFFFFFu, 0x7F7F7F7Fu, 37, 0x3F9D70A4u /* 1.23f */, 100003, kDrawn};

// Of any size: as many bits as are drawn too.
uint32_t drawn(uint64_t seed, uint64_t trial) {
  Random random(seed, Random::unwritten, trial);
  const uint64_t bits = random.next();
  return static_cast<uint32_t>(bits >> 32) >> bits % 32;
}

// All by which a launch can be recognised.
struct Outcome {
  bool ended;
  uint64_t way;
  std::vector<char> gm;

  bool operator==(const Outcome& o) const { return ended == o.ended && way == o.way && gm == o.gm; }
};

Outcome outcome(const State& state, const Launch& launch) {
  return {launch.ended.load(), state.way, state.journal.contents()};
}

Outcome repeat(State& state, const Launch& first, const Options& options) {
  Launch launch;
  launch.call = first.call;
  launch.clusters = first.clusters;
  launch.cores = first.cores;
  launch.options = &options;
  launch.kernel = first.kernel;
  launch.gm = first.gm;
  launch.lm_limit = first.lm_limit;
  launch.cluster_order = first.cluster_order;
  state.worker.repeats = true;
  state.worker.run(&launch);
  state.worker.repeats = false;
  Outcome result = outcome(state, launch);
  state.journal.undo();
  return result;
}

}  // namespace

void Journal::clear() {
  pieces_.clear();
  saved_.clear();
}

void Journal::save(uintptr_t address, size_t bytes) {
  char* const at = reinterpret_cast<char*>(address);
  if (!pieces_.empty() && pieces_.back().at + pieces_.back().bytes == at) {
    pieces_.back().bytes += bytes;
  } else {
    pieces_.push_back({at, bytes});
  }
  saved_.insert(saved_.end(), at, at + bytes);
}

std::vector<char> Journal::contents() const {
  std::vector<char> all;
  all.reserve(saved_.size());
  for (const Piece& piece : pieces_) all.insert(all.end(), piece.at, piece.at + piece.bytes);
  return all;
}

void Journal::put(const std::vector<char>& contents) const {
  const char* from = contents.data();
  for (const Piece& piece : pieces_) {
    std::memcpy(piece.at, from, piece.bytes);
    from += piece.bytes;
  }
}

void try_other_value(const State& state, char* address, size_t bytes, const void* pc) {
  if (pc != state.on_trial) return;
  for (size_t i = 0; i < bytes; ++i) {
    address[i] = static_cast<char>(state.tried_value >> (8 * (reinterpret_cast<uintptr_t>(address + i) & 3)));
  }
}

void repeat_for_unwritten_loads(State& state, Launch& launch) {
  std::vector<UnwrittenLoad> loads = std::exchange(state.unwritten_loads, {});
  if (loads.empty()) return;
  const Outcome first = outcome(state, launch);
  const Journal journal = std::exchange(state.journal, {});
  Options options = *launch.options;
  if (options.watchdog_seconds <= 0 || options.watchdog_seconds > 2) options.watchdog_seconds = 2;
  journal.undo();
  for (UnwrittenLoad& load : loads) {
    state.on_trial = load.pc;
    const bool used = std::any_of(std::begin(kValues), std::end(kValues), [&](uint32_t value) {
      state.tried_value = value != kDrawn ? value : drawn(options.seed, state.unwritten_trials++);
      return !(repeat(state, launch, options) == first);
    });
    if (!used) {
      auto& seen = state.harmless_unwritten;
      auto same = std::find_if(seen.begin(), seen.end(), [&](const auto& s) { return s.first == load.pc; });
      if (same == seen.end()) same = seen.insert(seen.end(), {load.pc, 0});
      ++same->second;
      continue;
    }
    state.used_unwritten.push_back(load.pc);
    keep(load.finding, &launch.findings);
  }
  state.on_trial = nullptr;
  journal.put(first.gm);
}

}  // namespace xpu_sim::rt::strict
