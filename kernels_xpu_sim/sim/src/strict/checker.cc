// Events of the runtime, as the strict checks see them.
#include <algorithm>
#include <cstring>

#include "../checker.h"
#include "../report.h"
#include "lm.h"
#include "state.h"

namespace xpu_sim::rt::strict {

namespace {

class StrictChecker : public Checker {
 public:
  bool may_interrupt() const override { return false; }  // between what a hook says and the access; see let_others_run
  bool many_workers() const override { return false; }  // conflicts between clusters are seen by one observer

  void launch_begins(Worker& worker) override {
    if (!worker.checker_state) worker.checker_state = std::make_shared<State>(worker);
    State& s = state(worker);
    const KernelInfo& kernel = *worker.launch()->kernel;
    s.origins.launch_begins(kernel.module);
    s.sm_objects.launch_begins(&kernel, worker.sm());
    s.gm.launch_begins(*worker.launch()->gm);
    s.launch_start = ++s.now;
    s.findings_seen = findings_made();
    s.way = 0;
    s.journal.clear();
    s.unwritten_loads.clear();
    s.narrow_stores.clear();
    s.suspect.address = nullptr;
    s.bad_index.waits = false;
    s.stores.resize(kStorePieces * static_cast<size_t>(worker.launch()->cores));
    for (int i = 0; i < kMaxCores; ++i) {
      worker.core(i).checker_state = &s;
      worker.core(i).stores = s.stores.data() + (i < worker.launch()->cores ? i * kStorePieces : 0);
    }
  }

  void launch_ends(Worker& worker) override {
    for (int i = 0; i < kMaxCores; ++i) worker.core(i).checked = false;
    if (worker.launch()->ended.load()) state(worker).lm.forget();
  }

  void launch_is_over(Worker& worker, Launch& launch) override {
    if (!launch.ended.load()) {
      for (const Finding& f : state(worker).narrow_stores.take()) keep(f, &launch.findings);
    }
    repeat_for_unwritten_loads(state(worker), launch);
  }

  void cluster_begins(Worker& worker) override {
    State& s = state(worker);
    s.sm.launch_begins(worker.sm(), worker.sm_bytes());
    if (worker.launch()->options->poison >= 0) s.sm_objects.all_written();
    s.sm_objects.cluster_begins();
    s.cluster_start = s.full_barrier = ++s.now;
    std::memset(s.seen, 0, sizeof s.seen);
    s.synchronised_in_part = false;
    std::fill_n(&s.fences[0][0], spaces * kMaxCores, 1u);
    std::memset(s.published, 0, sizeof s.published);
    std::memset(s.lock_seen, 0, sizeof s.lock_seen);
    s.atomics.clear();
    for (auto& pending : s.in_flight) pending.clear();
    for (int i = 0; i < worker.launch()->cores; ++i) s.gm_caches.clear(i);
  }

  char* core_begins(Core& core) override {
    const Fiber& f = *core.fiber;
    State& s = *state_of(core);
    core.checked = true;
    core.accesses = 0;
    return s.lm.clear(f, core.lm_top);
  }

  void core_ends(Core& core) override {
    core.checked = false;
    State& s = *state_of(core);
    look(s, core);
    finish_lm(s, core);
    s.went(core.accesses);
    s.lm.used(*core.fiber, core.lm_low, findings_made() != s.findings_seen);
    s.advance(core.id);  // what it fenced is published: its end counts as arrival
  }

  void barrier_completes(Worker& worker, uint64_t cores) override {
    State& s = state(worker);
    check_divergence(worker, cores);
    uint32_t time = 0;
    for (uint64_t rest = cores; rest; rest &= rest - 1) time = s.advance(__builtin_ctzll(rest));
    if ((cores | worker.finished()) == everyone(worker)) {
      s.full_barrier = time;
      return;
    }
    s.synchronised_in_part = true;
    // Those who meet know what any of them knew, and each other's past.
    uint32_t known[kMaxCores] = {};
    for (uint64_t rest = cores; rest; rest &= rest - 1) {
      const int i = __builtin_ctzll(rest);
      for (int j = 0; j < kMaxCores; ++j) known[j] = std::max(known[j], s.seen[i][j]);
    }
    for (uint64_t rest = cores; rest; rest &= rest - 1) known[__builtin_ctzll(rest)] = time;
    for (uint64_t rest = cores; rest; rest &= rest - 1) std::memcpy(s.seen[__builtin_ctzll(rest)], known, sizeof known);
  }

  void core_pauses(Core& core) override { look(*state_of(core), core); }

  bool bad_index(Core& core, Site site, const std::string& message, const char* array, int64_t index) override {
    if (!core.checked) return false;
    BadIndex& bad = state_of(core)->bad_index;
    if (!bad.waits) bad = {true, site, message, array, index};
    return true;
  }

  void fence(Core& core, uint32_t mask) override {
    State& s = *state_of(core);
    look(s, core);
    finish_fenced(s, core, mask);
  }

  void copy_issued(Core& core, const Copy& copy, bool sync) override {
    State& s = *state_of(core);
    look(s, core);
    s.went(reinterpret_cast<uintptr_t>(to_gm(copy.direction) ? copy.to : copy.from) ^ copy.bytes << 48);
    check_copy_conflicts(s, core, copy, sync);
    core.source_element = 0;
  }

  void copies_finished(Core& core, Direction direction) override { finish_kind(*state_of(core), core, direction); }

  // An atomic orders: who loads what another stored knows what that one knew.
  void atomic(Core& core, const void* address, bool store) override {
    State& s = *state_of(core);
    look(s, core);
    uint32_t* const seen = s.atomic(address).seen;
    store ? release(s, core, seen) : acquire(s, core, seen);
    atomic_access(s, core, static_cast<const char*>(address), store);
  }

  void lock(Core& core, bool acquired) override {
    State& s = *state_of(core);
    look(s, core);
    acquired ? acquire(s, core, s.lock_seen) : release(s, core, s.lock_seen);
  }

  void room(Core& core, const void* address, size_t bytes, Site site) override {
    check_room(core, address, bytes, site);
  }

 private:
  static State& state(Worker& worker) { return *static_cast<State*>(worker.checker_state.get()); }

  static uint64_t everyone(const Worker& worker) { return ~uint64_t{0} >> (64 - worker.launch()->cores); }

  static void release(State& s, Core& core, uint32_t* seen) {
    const uint32_t time = s.advance(core.id);
    for (int j = 0; j < kMaxCores; ++j) seen[j] = std::max(seen[j], s.seen[core.id][j]);
    seen[core.id] = time;
  }

  static void acquire(State& s, Core& core, const uint32_t* seen) {
    s.synchronised_in_part = true;
    for (int j = 0; j < kMaxCores; ++j) s.seen[core.id][j] = std::max(s.seen[core.id][j], seen[j]);
  }

  static void check_divergence(Worker& worker, uint64_t cores) {
    if (!worker.launch()->options->model.differing_barriers_diverge) return;
    const Core& first = worker.core(__builtin_ctzll(cores));
    for (uint64_t rest = cores; rest; rest &= rest - 1) {
      const Core& core = worker.core(__builtin_ctzll(rest));
      if (core.last.line == first.last.line && core.last.file == first.last.file) continue;
      Finding f = finding_at(Check::barrier_divergence, core, core.last,
                             "cores meet at one barrier from different lines:" + positions(worker));
      f.other = text("core %d waits at %s:%d", first.id, first.last.file, first.last.line);
      return report(Check::barrier_divergence, core, depending(std::move(f), "differing_barriers_diverge"));
    }
  }
};

// Never destroyed: other threads may launch while the program ends.
const bool installed = (checker = new StrictChecker, true);

}  // namespace

}  // namespace xpu_sim::rt::strict

// Called by the constructors of instrumented files; that it is here brings the checks into the program.
extern "C" __attribute__((used, visibility("hidden"))) void __tsan_init() {}
