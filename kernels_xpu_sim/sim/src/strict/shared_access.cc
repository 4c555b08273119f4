// Loads and stores outside of the core's own LM: SM, GM, or a mistake.
#include <algorithm>
#include <cstring>
#include <utility>

#include "../trap.h"
#include "memory_calls.h"
#include "state.h"

namespace xpu_sim::rt::strict {

namespace {

[[noreturn, gnu::cold]] void trap_at(Check check, Core& core, const char* p, const void* pc,
                                     const std::string& message) {
  Finding f = finding_at(check, core, pc, message);
  describe(&f, core, p);
  trap(std::move(f));
}

[[gnu::cold]] void conflict_at(State& state, Core& core, Conflict k, const Cell& cell, const char* p, size_t bytes,
                               bool write, const void* pc) {
  const Check check = check_for(k);
  if (k == Conflict::uninitialised) {
    return unwritten_load(state, core, pc, [&] { return conflict_finding(state, core, k, cell, p, write, pc); });
  }
  // A store of what is there already is harmless; whether this one is, is seen after it.
  const bool may_be_uniform = write && k != Conflict::write_in_flight && bytes <= sizeof state.suspect.before;
  if (!may_be_uniform) {
    return report_once(check, core, pc, 0, [&] { return conflict_finding(state, core, k, cell, p, write, pc); });
  }
  settle(state);
  state.suspect.address = p;
  state.suspect.bytes = bytes;
  std::memcpy(state.suspect.before, p, bytes);
  state.suspect.core = &core;
  state.suspect.conflict = k;
  state.suspect.cell = cell;
  state.suspect.pc = pc;
}

// One access that may fall into several cells gives one finding.
struct Worst {
  Conflict conflict = Conflict::none;
  Cell cell;

  void add(Conflict k, const Cell& c) {
    if (k == Conflict::none || conflict != Conflict::none) return;
    conflict = k;
    cell = c;
  }
};

inline void visit(Cell& c, const Access& a, bool write, Worst* worst) {
  const Cell before = c;
  if (write) {
    worst->add(check_write(&c, a), before);
    record_write(&c, a);
  } else {
    worst->add(read_cell(&c, a), before);
  }
}

// How many of the words are accessed as most are, without anything to find; those are done with.
size_t good_words(const Core& core, State& state, Cell* words, size_t count, bool write, Place place) {
  const uint16_t who = static_cast<uint16_t>(core.cluster * kMaxCores + core.id);
  const uint32_t fence = state.fences[sm_space][core.id];
  size_t good = 0;
  if (__builtin_expect(state.synchronised_in_part, 0)) {
    const auto repeats = [&](const Cell& c) {
      return write ? written_again(c, state.now, who, fence) : read_again(c, state.now, who);
    };
    while (good < count && repeats(words[good])) ++good;
    return good;
  }
  const PlainAccess a = {state.now, state.cluster_start, state.full_barrier, fence, state.published[sm_space], who,
                         place};
  if (write) {
    while (good < count && plain_write(&words[good], a)) ++good;
  } else {
    while (good < count && plain_read(&words[good], a)) ++good;
  }
  return good;
}

void sm_access(Core& core, State& state, const char* p, size_t bytes, bool write, const void* pc) {
  const Place place = state.places.of(pc);
  const size_t offset = static_cast<size_t>(p - core.worker->sm());
  uint8_t* const widths = state.sm_objects.widths(offset);
  if (write) {
    state.sm_objects.written(offset, bytes);
    write_scalar(widths, offset, bytes, kWritten);
  } else if (bytes <= 8 && mixed_scalar(widths, bytes)) {
    narrow_load(core, p, bytes, pc, Site());
  }
  size_t good = 0;
  if (Cell* const words = state.sm.words(p, bytes)) {
    good = 4 * good_words(core, state, words, bytes / 4, write, place);
    if (good == bytes) return;
  }
  const Access a = state.access(core, sm_space, place, write ? kCellStored : 0);
  Worst worst;
  const auto look = [&](Cell& c, const char* at, size_t n) {
    const bool seen_written = in_cluster(a, c.wstamp);
    visit(c, a, write, &worst);
    if (write || seen_written) return;
    if (state.sm_objects.unwritten(static_cast<size_t>(at - core.worker->sm()), n)) {
      worst.add(Conflict::uninitialised, c);
      if (__builtin_expect(pc == state.on_trial, 0)) {
        state.sm_objects.written(static_cast<size_t>(at - core.worker->sm()), n);
        try_other_value(state, const_cast<char*>(at), n, pc);
      }
    } else {
      written_unseen(&c, a);
    }
  };
  state.sm.each(p + good, bytes - good, look);
  if (__builtin_expect(worst.conflict != Conflict::none, 0)) {
    conflict_at(state, core, worst.conflict, worst.cell, p, bytes, write, pc);
  }
}

void cached_access(Core& core, State& state, const Region& region, const char* p, size_t bytes, bool write,
                   const void* pc) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(p);
  if (write) return state.gm_caches.store(core.id, region, at, bytes);
  if (state.gm_caches.load(core.id, region, at, bytes)) return;
  report_once(Check::missing_fence, core, pc, 0, [&] {
    Finding f = finding_at(Check::missing_fence, core, pc,
                           "read of a line of GM that this core has loaded before it was written, and no mfence since");
    describe(&f, core, p);
    const Access a = state.access(core, gm_space, 0);
    state.gm.each(region, at, bytes, a, [&](Cell& c, uintptr_t, size_t) {
      if (in_launch(a, c.wstamp)) f.other = writer_of(state, c);
    });
    f.order = "the core reads the line that it has, and not what was written since";
    return depending(std::move(f), "scalar_gm_is_coherent");
  });
}

void gm_access(Core& core, State& state, const Region& region, const char* p, size_t bytes, bool write,
               const void* pc) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(p);
  ++core.worker->counters.scalar_gm;
  if (at + bytes > region.end) {
    trap_at(Check::gm_out_of_bounds, core, p, pc,
            text("access to %zu bytes, of which the object has %zu", bytes, static_cast<size_t>(region.end - at)));
  }
  if (write && (region.read_only || region.mixed)) {
    const Span* const span = core.launch->gm->find(at, bytes, nullptr);
    if (span && span->read_only) {
      trap_at(Check::gm_read_only, core, p, pc, "store to what was given to the launch as read-only");
    }
  }
  if (region.read_only) return;
  if (!core.launch->options->model.scalar_gm_is_coherent) cached_access(core, state, region, p, bytes, write, pc);
  const Access a = state.access(core, gm_space, state.places.of(pc), write ? kCellStored : 0);
  Worst worst;
  state.went(at);
  if (write) {
    state.narrow_stores.note(region, at, bytes, pc, 0, [&] {
      return narrow_finding(finding_at(Check::narrow_store, core, pc, ""), core, at, bytes, region.element);
    });
  }
  state.gm.each(region, at, bytes, a, [&](Cell& c, uintptr_t first, size_t n) {
    if (write && !in_launch(a, c.wstamp)) state.journal.save(first, n);
    visit(c, a, write, &worst);
  });
  if (__builtin_expect(worst.conflict != Conflict::none, 0)) {
    conflict_at(state, core, worst.conflict, worst.cell, p, bytes, write, pc);
  }
}

// An access far beyond an array, whose index is known to be wrong: the array lies so many elements before.
[[gnu::cold]] void beyond_array(State& state, Core& core, const char* p, size_t bytes, const void* pc) {
  const BadIndex bad = std::exchange(state.bad_index, {});
  const char* const array = p - bad.index * static_cast<int64_t>(bytes);
  Finding f = finding_at(Check::lm_object_overflow, core, pc, bad.message);
  describe(&f, core, array);
  if (f.space.empty() || f.space == "GM") return;
  if (f.space == "SM") f.check = name_of(Check::sm_object_overflow);
  f.offset += p - array;
  trap(std::move(f));
}

[[gnu::cold]] void elsewhere(Core& core, const char* p, size_t bytes, bool write, const void* pc) {
  if (state_of(core)->bad_index.waits) beyond_array(*state_of(core), core, p, bytes, pc);
  const uintptr_t at = reinterpret_cast<uintptr_t>(p);
  const char* const kind = write ? "store" : "load";
  if (at < 4096) trap_at(Check::null_pointer, core, p, pc, text("%s through a null pointer", kind));
  const Module* const module = core.launch->kernel->module;
  if (!write && module) {  // constants of the kernel's
    for (const auto& [begin, end] : module->read_only) {
      if (at >= begin && at < end) return;
    }
  }
  if (core.worker->stacks().owner(p)) {
    trap_at(Check::lm_foreign, core, p, pc, text("%s of %zu bytes in another core's LM", kind, bytes));
  }
  const Span* const near = core.launch->gm->nearest(at);
  if (near && at + 4096 > near->begin && at < near->end + 4096) {
    trap_at(Check::gm_out_of_bounds, core, p, pc,
            text("%s of %zu bytes at byte %lld of %s, which has %zu", kind, bytes,
                 static_cast<long long>(at - near->begin), near->name, near->bytes()));
  }
  const std::string what = text("%s of %zu bytes at 0x%llx, which is neither LM nor SM nor GM", kind, bytes,
                                static_cast<unsigned long long>(at));
  const long long beyond = near ? static_cast<long long>(at - near->end) : 0;
  constexpr long long kFar = 1 << 28;
  trap_at(Check::host_pointer, core, p, pc,
          beyond > 0 && beyond < kFar
              ? what + text("; the nearest array of GM, %s, ends %lld bytes before it", near->name, beyond)
              : what);
}

// A core that loads the same again and again waits for another one, which may not have run yet.
inline void let_others_run(State& state, Core& core, const char* p, bool write, const void* pc) {
  constexpr int kSpins = 1000;
  Spin& spin = state.spin;
  if (write || spin.address != p || spin.pc != pc) {
    spin = {p, pc, 0};
  } else if (__builtin_expect(++spin.count >= kSpins, 0)) {
    spin.count = 0;
    core.worker->give_way();
  }
}

}  // namespace

void shared_access(Core& core, const char* p, size_t bytes, bool write, const void* pc) {
  State& state = *state_of(core);
  ++core.accesses;
  if (state.suspect.address) settle(state);
  let_others_run(state, core, p, write, pc);
  if (__builtin_expect(core.worker->watch.limit_reached(), 0)) watchdog_trap(core, pc);  // here its line is known
  const uintptr_t at = reinterpret_cast<uintptr_t>(p);
  const size_t offset = static_cast<size_t>(p - core.worker->sm());
  if (offset < core.worker->sm_bytes()) {
    if (state.sm_objects.is_guard(offset)) return;
    if (__builtin_expect(!state.sm_objects.hold(offset, bytes), 0)) {
      trap_at(Check::sm_object_overflow, core, p, pc,
              text("%s of %zu bytes outside of any __shared__ object", write ? "store" : "load", bytes));
    }
    return sm_access(core, state, p, bytes, write, pc);
  }
  if (const Region* region = state.gm.region(at)) return gm_access(core, state, *region, p, bytes, write, pc);
  elsewhere(core, p, bytes, write, pc);
}

void settle(State& state) {
  if (!state.suspect.address) return;
  const Suspect s = state.suspect;
  state.suspect.address = nullptr;
  const char* const changed = std::mismatch(s.address, s.address + s.bytes, s.before).first;
  if (changed == s.address + s.bytes) {
    return report_equal(*s.core, s.conflict, s.pc, 0,
                        [&] { return conflict_finding(state, *s.core, s.conflict, s.cell, s.address, true, s.pc); });
  }
  // The word, as the history has it.
  const char* const word = std::max(s.address, changed - (reinterpret_cast<uintptr_t>(changed) & 3));
  report_once(check_for(s.conflict), *s.core, s.pc, 0,
              [&] { return conflict_finding(state, *s.core, s.conflict, s.cell, word, true, s.pc); });
}

namespace {

[[noreturn]] void index_trap(State& state, const Core& core) {
  BadIndex& bad = state.bad_index;
  bad.waits = false;
  Finding f = finding_at(Check::lm_object_overflow, core, bad.site, std::move(bad.message));
  f.space = "LM";
  f.object = std::move(bad.array);
  trap(std::move(f));
}

}  // namespace

void look(State& state, Core& core) {
  if (__builtin_expect(state.bad_index.waits, 0)) index_trap(state, core);
  settle(state);
  state.gm_caches.settle();
}

}  // namespace xpu_sim::rt::strict
