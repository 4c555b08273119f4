// The strict checks' state during a launch. One per worker, hence per thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "../checks.h"
#include "../report.h"
#include "../worker.h"
#include "cell.h"
#include "cells.h"
#include "lm.h"
#include "narrow.h"
#include "xpu_sim/finding.h"

namespace xpu_sim::rt {

// Does it matter what was in memory that nothing had written? A load of it alone is no fault: tiles are loaded ahead,
// and structures copied whole. So such a load is remembered, and when the launch has ended it is repeated with other
// values in place of those: if GM, the way of a core or an address of GM differs, the value was used.
struct Core;
struct Launch;
class Worker;
}  // namespace xpu_sim::rt

namespace xpu_sim::rt::strict {

struct State;

// Contents of GM before the launch.
class Journal {
 public:
  void clear();
  // Before the first write of a launch to a piece of GM.
  void save(uintptr_t address, size_t bytes);
  // What the pieces hold now, one after the other.
  std::vector<char> contents() const;
  void put(const std::vector<char>& contents) const;
  // Restores GM.
  void undo() const { put(saved_); }

 private:
  struct Piece {
    char* at;
    size_t bytes;
  };
  std::vector<Piece> pieces_;
  std::vector<char> saved_;
};

// A load of what nothing has written, at an instruction.
struct UnwrittenLoad {
  const void* pc;
  Finding finding;
};

// Puts the value to be tried into bytes that nothing has written, if the instruction is the one on trial.
void try_other_value(const State& state, char* address, size_t bytes, const void* pc);

// Repeats the launch for each remembered load, and reports those that matter. GM is then as the launch left it.
void repeat_for_unwritten_loads(State& state, Launch& launch);

enum Space { sm_space, gm_space, spaces };

// A copy whose fence has not come. Whether it has happened is another matter: that is up to the DMA policy.
struct InFlight {
  Copy copy;
  const char* decides = nullptr;  // the flag of the model with which it would have finished by now
  const char* local() const { return to_gm(copy.direction) ? copy.from : copy.to; }
  const char* gm() const { return to_gm(copy.direction) ? copy.to : copy.from; }
};

// A store that conflicts with another core's; harmless if it stores what is there. Known when the store is done.
struct Suspect {
  const char* address = nullptr;
  size_t bytes = 0;
  char before[256];
  Core* core = nullptr;
  Conflict conflict{};
  Cell cell{};
  const void* pc = nullptr;
};

// An index beyond its array. An access outside of any object of SM follows if the array lies there. Else it lies in LM,
// where an array that is used by index alone is not reported.
struct BadIndex {
  bool waits = false;
  Site site;
  std::string message, array;
  int64_t index = 0;
};

// The same load, again and again.
struct Spin {
  const char* address = nullptr;
  const void* pc = nullptr;
  int count = 0;
};

// Where elements of LM were last written in part, as far as it is known. Forgets: addresses share entries.
class NarrowWrites {
 public:
  void note(const char* address, At at) { entry(address) = {address, at}; }
  const At* find(const char* address) {
    const Entry& e = entry(address);
    return e.address == address ? &e.at : nullptr;
  }

 private:
  struct Entry {
    const char* address = nullptr;
    At at;
  };
  Entry& entry(const char* address) { return entries_[reinterpret_cast<uintptr_t>(address) / 8 % 64]; }
  Entry entries_[64];
};

struct State {
  explicit State(Worker& w) : worker(w) {}

  Access access(const Core& core, Space space, Origin origin, uint16_t flags = 0) const;
  // Time advances: `core` has synchronised, with whom the caller records in seen.
  uint32_t advance(int core);

  Worker& worker;
  LmShadow lm;
  SmCells sm;
  SmObjects sm_objects;
  GmCells gm;
  GmCaches gm_caches;
  Origins origins;
  uint32_t now = 1, launch_start = 1, cluster_start = 1, full_barrier = 1;
  uint32_t seen[kMaxCores][kMaxCores];            // row: the core that knows
  bool synchronised_in_part = false;              // in this cluster, not by barriers of all: seen has something
  uint32_t fences[spaces][kMaxCores];
  uint32_t published[spaces][kMaxCores];
  std::vector<InFlight> in_flight[kMaxCores];
  std::vector<const void*> stores;                // of each core: stores.h
  uint32_t lock_seen[kMaxCores];                  // what the last holder of ticket_lock_mix knew
  struct Atomic {
    const void* address;
    uint32_t seen[kMaxCores];
  };
  Atomic& atomic(const void* address);            // made when first asked for in this cluster
  std::vector<Atomic> atomics;
  LazyArray<uint32_t> atomic_of;                  // by word of SM: where in `atomics`, if there is that address
  NarrowStores narrow_stores;                     // of this launch
  NarrowWrites narrow_writes;                     // of LM
  Suspect suspect;
  BadIndex bad_index;
  Spin spin;

  // -- loads of what nothing has written (repeats.h)
  void went(uint64_t what) { way = (way ^ what) * 0x9E3779B97F4A7C15ull; }
  uint64_t way = 0;                               // a hash of what cores did
  Journal journal;                                // of this launch
  std::vector<UnwrittenLoad> unwritten_loads;     // of this launch
  std::vector<const void*> used_unwritten;        // the instructions where it mattered, in any launch
  std::vector<std::pair<const void*, int>> harmless_unwritten;  // where it did not, and in how many launches
  const void* on_trial = nullptr;                 // in a repetition: the instruction whose value is another,
  uint32_t tried_value = 0;                       // and which
  uint64_t unwritten_trials = 0;                  // with a value that is drawn
  uint64_t findings_seen = 0;
};

// The copy in flight, of any core, that uses a part of the range in LM or SM; nullptr: none does.
const InFlight* copy_in_flight(const State& state, const char* address, size_t bytes);

// A load of what nothing has written; make() gives the finding. It is a fault if the value matters.
template <class F>
void unwritten_load(State& state, Core& core, const void* pc, F make) {
  if (core.worker->repeats) return;
  constexpr int kEnough = 16;  // launches, each of which is repeated
  const auto harmless = [&](const auto& seen) { return seen.first == pc && seen.second >= kEnough; };
  if (std::any_of(state.harmless_unwritten.begin(), state.harmless_unwritten.end(), harmless)) return;
  const auto known = [&](const void* used) { return used == pc; };
  if (core.launch->options->halt_on_first ||
      std::any_of(state.used_unwritten.begin(), state.used_unwritten.end(), known)) {
    return report_once(Check::uninitialised_read, core, pc, make);
  }
  for (const UnwrittenLoad& load : state.unwritten_loads) {
    if (load.pc == pc) return;
  }
  const WatchdogHold making(&core.worker->watch);
  state.unwritten_loads.push_back({pc, make()});
}

// As cells have it.
inline uint16_t number_of(const Core& core) { return static_cast<uint16_t>(core.cluster * kMaxCores + core.id); }

inline Access State::access(const Core& core, Space space, Origin origin, uint16_t flags) const {
  Access a;
  a.now = now;
  a.launch_start = space == sm_space ? cluster_start : launch_start;  // SM starts again with each cluster
  a.cluster_start = cluster_start;
  a.full_barrier = full_barrier;
  a.seen = seen[core.id];
  a.published = published[space];
  a.fence = fences[space][core.id];
  a.who = number_of(core);
  a.flags = flags;
  a.atomic = (flags & kCellAtomic) != 0;
  a.in_part = synchronised_in_part;
  a.fifo = core.launch->options->model.dma_fifo;
  a.origin = origin;
  return a;
}

inline State* state_of(const Core& core) { return static_cast<State*>(core.checker_state); }

// A store through the hooks, or a load.
void shared_access(Core& core, const char* address, size_t bytes, bool write, const void* pc);
// Settles whether the last suspect store changed anything.
void settle(State& state);
// The core calls the runtime: settles all that was waiting to be seen.
void look(State& state, Core& core);

// -- findings
// FILE:LINE, as far as it is known.
std::string location_text(const Location& where);
std::string location_text(const void* pc);  // of a return address
// The last write that the history has.
std::string writer_of(const State& state, const Cell& cell);
void lm_finding(Core& core, Check check, const char* address, size_t bytes, bool write, const void* pc);
Check check_for(Conflict conflict);
// Of a write to GM whose first or last element is written in part.
Finding narrow_finding(Finding finding, const Core& core, uintptr_t address, size_t bytes, unsigned element);
// Of a load or store, or of a copy, whose text comes first. Names the other access by the cell's history.
Finding conflict_finding(State& state, Core& core, Conflict conflict, const Cell& cell, const char* address, bool write,
                         At at, const std::string& copy = "");

// A store, or a copy, of what is there already. What make() gives says so.
template <class F>
void report_equal(Core& core, Conflict conflict, At at, F make) {
  const bool fenced = conflict == Conflict::unpublished;  // of stores of the same value, both orders give the same
  if (fenced || !core.launch->options->model.equal_stores_conflict) return;
  report_once(check_for(conflict), core, at, [&] {
    Finding f = depending(make(), "equal_stores_conflict");
    f.message += "; here the value does not change";
    return f;
  }, Severity::depends);
}

// -- slow paths of the hooks, and what kernels call in place of memcpy and its like

void load_range(const char* p, size_t bytes, const void* pc);
void store_range(char* p, size_t bytes, const void* pc);

[[gnu::cold]] void lm_load_slow(Core& core, const char* p, size_t bytes, const void* pc);
[[noreturn, gnu::cold]] void beyond_lm(Core& core, const char* p, size_t bytes, bool write, const void* pc);
[[gnu::cold]] void store_beyond_lm(Core& core, const char* p, size_t bytes, const void* pc);
[[gnu::cold]] void lm_store_slow(Core& core, const char* p, size_t bytes, const void* pc);
// A load or a copy where stores of different widths have written; `pc`: in the function that does it.
[[gnu::cold]] void narrow_load(Core& core, const char* p, size_t bytes, const void* pc, At at);
[[gnu::cold]] void unaligned(Core& core, const char* p, size_t bytes, const void* pc);

void check_copy_conflicts(State& state, Core& core, const Copy& copy, bool sync);

// What a fence, a synchronous copy or the end of the core completes.
void finish_fenced(State& state, Core& core, uint32_t mask);
void finish_kind(State& state, Core& core, Direction direction);
void finish_lm(State& state, Core& core);

void atomic_access(State& state, Core& core, const char* address, bool store);
void check_room(Core& core, const void* address, size_t bytes, Site site);

}  // namespace xpu_sim::rt::strict
