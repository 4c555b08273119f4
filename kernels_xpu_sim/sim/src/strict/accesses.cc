// Loads, stores and copies outside of the core's own LM, against the memory's history.
#include <algorithm>
#include <cstring>
#include <utility>

#include "../report.h"
#include "lm.h"
#include "state.h"

namespace xpu_sim::rt::strict {

namespace {

[[noreturn, gnu::cold]] void trap_at(Check check, Core& core, const char* p, const void* pc,
                                     const std::string& message) {
  trap(finding_at(check, core, pc, message, p));
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
    return report_once(check, core, pc, [&] { return conflict_finding(state, core, k, cell, p, write, pc); });
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
  Cell cell{};
  const char* where = nullptr;

  void add(Conflict k, const Cell& c, const char* at = nullptr) {
    if (k != Conflict::none && conflict == Conflict::none) *this = {k, c, at};
  }
};

inline void visit(Cell& c, const Access& a, bool write, Worst* worst, const char* at = nullptr) {
  const Cell before = c;
  if (write) {
    worst->add(check_write(&c, a), before, at);
    record_write(&c, a);
  } else {
    worst->add(read_cell(&c, a), before, at);
  }
}

// How many of the words are accessed as most are, without anything to find; those are done with.
size_t good_words(const Core& core, State& state, Cell* words, size_t count, bool write, Origin origin) {
  const uint16_t who = number_of(core);
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
                         origin};
  if (write) {
    while (good < count && plain_write(&words[good], a)) ++good;
  } else {
    while (good < count && plain_read(&words[good], a)) ++good;
  }
  return good;
}

void sm_access(Core& core, State& state, const char* p, size_t bytes, bool write, const void* pc) {
  const Origin origin = state.origins.of(pc);
  const size_t offset = static_cast<size_t>(p - core.worker->sm());
  uint8_t* const widths = state.sm_objects.widths(offset);
  if (write) {
    state.sm_objects.written(offset, bytes);
    write_scalar(widths, offset, bytes, kWritten);
  } else if (bytes <= 8 && mixed_scalar(widths, bytes)) {
    narrow_load(core, p, bytes, pc, pc);
  }
  size_t good = 0;
  if (Cell* const words = state.sm.words(p, bytes)) {
    good = 4 * good_words(core, state, words, bytes / 4, write, origin);
    if (good == bytes) return;
  }
  const Access a = state.access(core, sm_space, origin, write ? kCellStored : 0);
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
  report_once(Check::missing_fence, core, pc, [&] {
    Finding f =
        finding_at(Check::missing_fence, core, pc,
                   "stale read of GM: this core loaded the line before it was written, and has not fenced since", p);
    const Access a = state.access(core, gm_space, 0);
    state.gm.each(region, at, bytes, a, [&](Cell& c, uintptr_t, size_t) {
      if (in_launch(a, c.wstamp)) f.other = writer_of(state, c);
    });
    f.order = "the core reads its cached line instead of what was written since";
    return depending(std::move(f), "scalar_gm_is_coherent");
  });
}

void gm_access(Core& core, State& state, const Region& region, const char* p, size_t bytes, bool write,
               const void* pc) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(p);
  ++core.worker->counters.scalar_gm;
  if (at + bytes > region.end) {
    trap_at(Check::gm_out_of_bounds, core, p, pc,
            text("access to %zu bytes: only %zu are left of the object", bytes, static_cast<size_t>(region.end - at)));
  }
  if (write && (region.read_only || region.mixed)) {
    const Span* const span = core.launch->gm->find(at, bytes);
    if (span && span->read_only) {
      trap_at(Check::gm_read_only, core, p, pc, "store to GM that is read-only in this launch");
    }
  }
  if (region.read_only) return;
  if (!core.launch->options->model.scalar_gm_is_coherent) cached_access(core, state, region, p, bytes, write, pc);
  state.went(at);
  const uint16_t who = number_of(core);
  if (const Cell* const c = state.gm.element(region, at, bytes, state.launch_start)) {
    const uint32_t fence = state.fences[gm_space][core.id];
    const bool again =
        write ? written_again(*c, state.now, who, fence) : read_again(*c, state.now, who) && !(c->flags & kCellAsync);
    if (again) return;
  }
  const Access a = state.access(core, gm_space, state.origins.of(pc), write ? kCellStored : 0);
  Worst worst;
  if (write) {
    state.narrow_stores.note(region, at, bytes, pc, [&] {
      return narrow_finding(finding_at(Check::narrow_store, core, pc, ""), core, at, bytes, region.element);
    });
  }
  state.gm.each(region, at, bytes, a, [&](Cell& c, uintptr_t first, size_t n) {
    if (write && !in_launch(a, c.wstamp)) state.journal.save(first, n);
    if (!(write ? first_write(&c, a) : first_read(&c, a))) visit(c, a, write, &worst);
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
  long long byte = 0;
  if (const std::string freed = freed_gm(p, &byte); !freed.empty()) {
    trap_at(Check::freed_memory, core, p, pc,
            text("%s of %zu bytes at byte %lld of %s, which was freed", kind, bytes, byte, freed.c_str()));
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
              text("%s of %zu bytes outside of every __shared__ object", write ? "store" : "load", bytes));
    }
    return sm_access(core, state, p, bytes, write, pc);
  }
  if (const Region* region = state.gm.region(at, reinterpret_cast<uintptr_t>(pc)))
    return gm_access(core, state, *region, p, bytes, write, pc);
  elsewhere(core, p, bytes, write, pc);
}

void settle(State& state) {
  if (!state.suspect.address) return;
  const Suspect s = state.suspect;
  state.suspect.address = nullptr;
  const char* const changed = std::mismatch(s.address, s.address + s.bytes, s.before).first;
  if (changed == s.address + s.bytes) {
    return report_equal(*s.core, s.conflict, s.pc,
                        [&] { return conflict_finding(state, *s.core, s.conflict, s.cell, s.address, true, s.pc); });
  }
  // The word, as the history has it.
  const char* const word = std::max(s.address, changed - (reinterpret_cast<uintptr_t>(changed) & 3));
  report_once(check_for(s.conflict), *s.core, s.pc,
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

namespace {

bool overlap(const char* a, size_t a_bytes, const char* b, size_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

std::string name(const Copy& c) { return text("%s of %zu bytes", direction_name(c.direction), c.bytes); }

// `flag`: of the model, which decides; nullptr: none does.
void complain(Core& core, const Copy& c, const char* address, Check check, const char* flag, const char* message,
              const InFlight* other = nullptr) {
  report_once(check, core, c.site, [&] {
    Finding f = finding_at(check, core, c.site, name(c) + ": " + message, address);
    if (flag) f = depending(std::move(f), flag);
    if (other) {
      const Copy& o = other->copy;
      f.other = text("%s_ASYNC at %s:%d", direction_name(o.direction), o.site.file, o.site.line);
    }
    return f;
  });
}

// A copy out of memory that a store has not been fenced to; `other`: the store, as far as it is known.
void unfenced_store(Core& core, const Copy& c, const char* address, const char* flag, const char* message,
                    const std::string& other) {
  report_once(Check::missing_fence, core, c.site, [&] {
    Finding f = depending(finding_at(Check::missing_fence, core, c.site, name(c) + ": " + message, address), flag);
    f.other = other;
    f.order = "the copy reads before the store arrives";
    return f;
  });
}

// Reports the conflict of a copy's access, if there is one.
void complain(State& s, Core& core, const Copy& c, const Worst& w, bool write) {
  if (w.conflict == Conflict::none) return;
  report_once(check_for(w.conflict), core, c.site,
              [&] { return conflict_finding(s, core, w.conflict, w.cell, w.where, write, c.site, name(c)); });
}

// An earlier copy of this core's, still in flight, that uses the same local memory.
const InFlight* earlier(const State& s, const Core& core, const Copy& c, const char* local) {
  for (const InFlight& f : s.in_flight[core.id]) {
    if (overlap(f.local(), f.copy.bytes, local, c.bytes)) return &f;
  }
  return nullptr;
}

void lm_side(State& s, Core& core, const Copy& c, const char* local, bool sync) {
  const Model& model = core.launch->options->model;
  uint8_t* const shadow = s.lm.of(local);
  const uint8_t bits = any_bits(shadow, c.bytes);
  const bool reads = to_gm(c.direction);
  if (!model.dma_fifo && (bits & (reads ? kDestination : kDestination | kSource))) {
    complain(core, c, local, reads ? Check::read_in_flight : Check::write_in_flight, "dma_fifo",
             "an earlier copy in flight uses its buffer in LM", earlier(s, core, c, local));
  }
  if (reads) {
    const bool all_written = all_bits(shadow, c.bytes) & kWritten;
    if (!all_written && s.lm.has_unwritten(local, c.bytes)) {
      complain(core, c, local, Check::uninitialised_read, nullptr, "some of its source was never written");
    }
    const bool stored = (bits & kStored) || (!all_written && s.lm.written_unseen(local, c.bytes));
    if (stored && model.store_to_dma_needs_fence) {
      const uint8_t* const byte = std::find_if(shadow, shadow + c.bytes, [](uint8_t b) { return b & kStored; });
      const char* const at = byte == shadow + c.bytes ? local : local + (byte - shadow);
      unfenced_store(core, c, at, "store_to_dma_needs_fence", "its source was stored to without an mfence_lm since",
                     bits & kStored ? "store at " + location_text(store_at(core, at)) : "");
    }
    if (mixed_widths(shadow, c.bytes)) narrow_load(core, local, c.bytes, core.last_pc, c.site);
    if (!sync) set_bits(shadow, c.bytes, kSource);
  } else {
    // The last element may be filled in part.
    if (c.bytes & 7) s.narrow_writes.note(local + (c.bytes & ~size_t{7}), c.site);
    write_block(shadow, reinterpret_cast<uintptr_t>(local), c.bytes, kWritten | (sync ? 0 : kDestination));
  }
}

void sm_side(State& s, Core& core, const Copy& c, const char* local, bool sync) {
  const bool reads = to_gm(c.direction);
  Access a = s.access(core, sm_space, s.origins.of(c.site));
  if (!reads && sync) --a.fence;  // it is in SM when the call returns, for the barrier to publish
  Worst worst;
  bool unwritten = false;
  Origin stored = 0;
  const size_t offset = static_cast<size_t>(local - core.worker->sm());
  if (!reads) {
    s.sm_objects.written(offset, c.bytes);
    write_block(s.sm_objects.widths(offset), offset, c.bytes, kWritten);
  } else if (mixed_widths(s.sm_objects.widths(offset), c.bytes)) {
    narrow_load(core, local, c.bytes, core.last_pc, c.site);
  }
  s.sm.each(local, c.bytes, [&](Cell& x, const char* p, size_t bytes) {
    const Cell before = x;
    visit(x, a, !reads, &worst, p);
    if (reads) {
      unwritten |=
          before.wstamp < s.cluster_start && s.sm_objects.unwritten(static_cast<size_t>(p - core.worker->sm()), bytes);
      if (before.wstamp >= s.cluster_start && (before.flags & kCellStored) && before.wcore == a.who &&
          before.wfence == a.fence) {
        stored = before.worigin;
      }
    }
    if (!sync) x.flags |= reads ? kCellSource : kCellDestination;
  });
  complain(s, core, c, worst, !reads);
  if (unwritten) {
    complain(core, c, local, Check::uninitialised_read, nullptr,
             "some of its source was never written in this cluster");
  }
  if (stored && core.launch->options->model.store_to_dma_needs_fence) {
    unfenced_store(core, c, local, "store_to_dma_needs_fence", "its source was stored to without an mfence_sm since",
                   "store at " + location_text(s.origins.locate(stored)));
  }
}

// Neighbouring pieces that a copy is the first to write to: saved at once.
struct FreshRun {
  uintptr_t first = 0;
  size_t bytes = 0;

  void add(Journal& journal, uintptr_t at, size_t n) {
    if (at != first + bytes) {
      end(journal);
      first = at;
    }
    bytes += n;
  }
  void end(Journal& journal) {
    if (bytes) journal.save(first, bytes);
    bytes = 0;
  }
};

void gm_side(State& s, Core& core, const Region& region, const Copy& c, const char* gm, const char* local, bool sync) {
  const bool writes = to_gm(c.direction);
  Access a = s.access(core, gm_space, s.origins.of(c.site), writes && !sync ? kCellAsync : 0);
  if (writes && sync && core.launch->options->model.sync_store_is_visible) --a.fence;
  if (writes && !core.launch->options->model.dma_fifo) {
    for (const InFlight& f : s.in_flight[core.id]) {
      if (!to_gm(f.copy.direction) && overlap(f.gm(), f.copy.bytes, gm, c.bytes)) {
        complain(core, c, gm, Check::write_in_flight, "dma_fifo",
                 "its destination is the source of an earlier copy in flight", &f);
        break;
      }
    }
  }
  if (writes) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(gm);
    s.narrow_stores.note(region, at, c.bytes, c.site, [&] {
      return narrow_finding(finding_at(Check::narrow_store, core, c.site, ""), core, at, c.bytes, region.element);
    });
  }
  Worst worst;
  const bool caches = !core.launch->options->model.scalar_gm_is_coherent;
  Origin stored = 0;  // where: by this core, and perhaps in its cache still
  const auto look = [&](Cell& x, uintptr_t first, size_t bytes) {
    const char* const p = reinterpret_cast<const char*>(first);
    const Cell before = x;
    if (in_launch(a, before.wstamp) && (before.flags & kCellStored) && before.wcore == a.who &&
        before.wfence == s.fences[gm_space][core.id]) {
      stored = before.worigin;
    }
    Worst found;
    visit(x, a, writes, &found, p);
    const Conflict k = found.conflict;
    if (writes && k != Conflict::none && k != Conflict::write_in_flight) {
      // Writing an equal value is harmless.
      const char* const low = std::max(p, gm);
      const char* const high = std::min(p + bytes, gm + c.bytes);
      if (std::memcmp(low, local + (low - gm), static_cast<size_t>(high - low)) == 0) {
        return report_equal(core, k, c.site,
                            [&] { return conflict_finding(s, core, k, before, p, true, c.site, name(c)); });
      }
    }
    worst.add(k, before, p);
  };
  FreshRun fresh;
  const auto visit = [&](Cell& x, uintptr_t first, size_t bytes) __attribute__((always_inline)) {
    if (writes && !in_launch(a, x.wstamp)) fresh.add(s.journal, first, bytes);
    if (caches || !(writes ? first_write(&x, a) : first_read(&x, a))) look(x, first, bytes);
  };
  s.gm.each(region, reinterpret_cast<uintptr_t>(gm), c.bytes, a, visit);
  fresh.end(s.journal);
  complain(s, core, c, worst, writes);
  if (stored && caches) {
    unfenced_store(core, c, gm, "scalar_gm_is_coherent", "this core stored to its side in GM without an mfence since",
                   "store at " + location_text(s.origins.locate(stored)));
  }
}

void finish_local(State& s, const InFlight& f) {
  if (local_fence(f.copy.direction) == fence_lm) {
    clear_bits(s.lm.of(f.local()), f.copy.bytes, kDestination | kSource);
  } else {
    s.sm.each(f.local(), f.copy.bytes, [](Cell& c, const char*, size_t) {
      c.flags &= static_cast<uint16_t>(~(kCellDestination | kCellSource));
    });
  }
}

// What the copy has written is where others can see it, as if it had been fenced.
void publish(State& s, const Core& core, const InFlight& f) {
  const auto seen = [&](Space space) {
    const uint16_t who = number_of(core);
    return [who, fence = s.fences[space][core.id]](Cell& c, auto, size_t) {
      if (c.wcore != who || c.wfence != fence) return;
      --c.wfence;
      c.flags &= static_cast<uint16_t>(~kCellAsync);
    };
  };
  if (f.copy.direction == gm2sm) s.sm.each(f.local(), f.copy.bytes, seen(sm_space));
  if (!to_gm(f.copy.direction) || !core.launch->options->model.sync_store_is_visible) return;
  const uintptr_t gm = reinterpret_cast<uintptr_t>(f.gm());
  const Region* const region = s.gm.region(gm);
  if (region) s.gm.each(*region, gm, f.copy.bytes, s.access(core, gm_space, 0), seen(gm_space));
}

template <class F>
void finish_if(State& s, Core& core, bool visible, const Model& model, F chosen) {
  std::vector<InFlight>& all = s.in_flight[core.id];
  if (all.empty()) return;
  const auto under = [&](const Model& m) { return [&](const InFlight& f) { return chosen(f.copy, m); }; };
  const auto later = pick(all.begin(), all.end(), model.dma_fifo, under(model));
  for (auto f = all.begin(); f != later; ++f) {
    finish_local(s, *f);
    if (visible) publish(s, core, *f);
  }
  all.erase(all.begin(), later);
  Model others = model;
  others.sync_drains_all_kinds = others.lm_fence_frees_source = true;
  for (InFlight& f : all) {
    if (under(others)(f)) f.decides = visible ? "sync_drains_all_kinds" : "lm_fence_frees_source";
  }
  // Ranges may overlap: what is still in flight is so again.
  for (const InFlight& f : all) {
    if (local_fence(f.copy.direction) == fence_lm) {
      set_bits(s.lm.of(f.local()), f.copy.bytes, to_gm(f.copy.direction) ? kSource : kDestination);
    }
  }
}

}  // namespace

void check_copy_conflicts(State& s, Core& core, const Copy& c, bool sync) {
  const char* const gm = to_gm(c.direction) ? c.to : c.from;
  const char* const local = to_gm(c.direction) ? c.from : c.to;
  if (local_fence(c.direction) == fence_lm) {
    if (local < core.lm_low) core.lm_low = const_cast<char*>(local);
    lm_side(s, core, c, local, sync);
  } else {
    sm_side(s, core, c, local, sync);
  }
  const Region* const region = s.gm.region(reinterpret_cast<uintptr_t>(gm), static_cast<unsigned>(c.site.line));
  if (region && !region->read_only) gm_side(s, core, *region, c, gm, local, sync);
  if (!sync) s.in_flight[core.id].push_back({c});
}

void finish_fenced(State& s, Core& core, uint32_t mask) {
  const Model& model = core.launch->options->model;
  finish_if(s, core, false, model, [mask](const Copy& c, const Model& m) { return completes(c, mask, m); });
  if (mask & fence_sm) ++s.fences[sm_space][core.id];
  if (mask & fence_gm) {
    ++s.fences[gm_space][core.id];
    s.gm_caches.clear(core.id);
  }
  if (mask & fence_lm) s.lm.fence(core.lm_low, core.lm_top);
}

// A synchronous copy has finished when it returns, and with it the earlier ones of its kind.
void finish_kind(State& s, Core& core, Direction direction) {
  const Model& model = core.launch->options->model;
  finish_if(s, core, true, model, [direction](const Copy& c, const Model& m) { return drains(direction, c, m); });
}

// Its LM is nobody's any more. Copies that involve SM go on: the end of a core is no fence.
void finish_lm(State& s, Core& core) {
  Model unordered = core.launch->options->model;
  unordered.dma_fifo = false;
  finish_if(s, core, false, unordered,
            [](const Copy& c, const Model&) { return local_fence(c.direction) == fence_lm; });
}

void atomic_access(State& s, Core& core, const char* address, bool store) {
  Access a = s.access(core, sm_space, s.origins.of(core.last), kCellAtomic);
  --a.fence;  // it is in SM at once, for a barrier to publish
  if (store) {
    const size_t offset = static_cast<size_t>(address - core.worker->sm());
    s.sm_objects.written(offset, 4);
    std::memset(s.sm_objects.widths(offset), kWritten | width_bits(4), 4);
  }
  Conflict k = Conflict::none;
  Cell cell{};
  s.sm.each(address, 4, [&](Cell& c, const char*, size_t) {
    const Cell before = c;
    const size_t offset = static_cast<size_t>(address - core.worker->sm());
    if (!store && before.wstamp < s.cluster_start && s.sm_objects.unwritten(offset, 4)) {
      unwritten_load(s, core, core.last_pc, [&] {
        return conflict_finding(s, core, Conflict::uninitialised, before, address, false, core.last);
      });
      try_other_value(s, const_cast<char*>(address), 4, core.last_pc);
    }
    if (store) {
      // Reads by other atomics are no conflict, and those of others would be found when they read.
      if (!(c.flags & kCellAtomic)) k = check_write(&c, a);
      record_write(&c, a);
    } else {
      k = against_write(c, a, false);
    }
    cell = before;
  });
  if (k == Conflict::none) return;
  report_once(check_for(k), core, core.last_pc,
              [&] { return conflict_finding(s, core, k, cell, address, store, core.last); });
}

void check_room(Core& core, const void* address, size_t bytes, Site site) {
  const char* const p = static_cast<const char*>(address);
  const size_t sm_offset = static_cast<size_t>(p - core.worker->sm());
  const bool in_sm = sm_offset < core.worker->sm_bytes();
  const bool fits = in_sm ? state_of(core)->sm_objects.hold(sm_offset, bytes) : p + bytes <= core.lm_top;
  if (fits) return;
  trap(finding_at(in_sm ? Check::sm_object_overflow : Check::lm_object_overflow, core, site,
                  text("casts convert whole vectors: %zu bytes from here end outside of the object", bytes), p));
}

}  // namespace xpu_sim::rt::strict
