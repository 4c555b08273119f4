// The DMA engine: checks each copy as the hardware would, then executes it according to the policy. Also called by
// inlined builtins in possible error cases.
#include "dma.h"

#include <algorithm>
#include <iterator>

#include "checker.h"
#include "gm.h"
#include "lm.h"
#include "random.h"
#include "report.h"
#include "trace.h"
#include "worker.h"
#include "xpu_sim/kernel/cast.h"
#include "xpu_sim/kernel/dma.h"
#include "xpu_sim/kernel/simd/memory.h"

namespace xpu_sim::rt {

namespace {

std::string what(const Copy& c) { return text("%s of %zu bytes", direction_name(c.direction), c.bytes); }

std::string hex(const void* p) {
  return text("0x%llx", static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(p)));
}

// Ends the launch, or goes on without the copy: what then reads its destination, or what it should have freed, is wrong
// too.
void leave_out(const Core& core, const Copy& c, Finding f) {
  trap_or_go_on(std::move(f));
  std::string& first = core.worker->left_out;
  if (first.empty()) first = text("the skipped %s at %s:%d", what(c).c_str(), c.site.file, c.site.line);
}

void trap_at(Check check, const Core& core, const Copy& c, const void* address, std::string message) {
  leave_out(core, c, finding_at(check, core, c.site, std::move(message), address));
}

// What a copy must satisfy before it may touch memory. Each returns where the options ask to keep going: then the copy
// is left out.
void bad_length(const Core& core, const Copy& c, long long n) {
  const void* const gm = to_gm(c.direction) ? c.to : c.from;
  const char* const name = direction_name(c.direction);
  if (n == 0) {
    // Nothing is missing without it.
    return trap_or_go_on(finding_at(Check::dma_len_zero, core, c.site,
                                    text("%s: expected at least 1 byte, got 0; guard it: if (n > 0)", name), gm));
  }
  trap_at(Check::dma_len_negative, core, c, gm, text("%s: expected at least 1 byte, got %lld", name, n));
}

void bad_gm(const Core& core, const Copy& c) {
  const char* const gm = to_gm(c.direction) ? c.to : c.from;
  const uintptr_t at = reinterpret_cast<uintptr_t>(gm);
  const char* const side = to_gm(c.direction) ? "destination" : "source";
  if (at < 4096) {
    return trap_at(Check::null_pointer, core, c, gm,
                   what(c) + ": its GM " + side + " is " + (at ? hex(gm) : "a null pointer"));
  }
  long long byte = 0;
  if (const std::string freed = freed_gm(gm, &byte); !freed.empty()) {
    return trap_at(Check::freed_memory, core, c, gm,
                   what(c) + text(": its GM %s is byte %lld of %s, which was freed", side, byte, freed.c_str()));
  }
  if (core.launch->gm->find(at, c.bytes)) {
    return trap_at(Check::gm_read_only, core, c, gm, what(c) + ": its destination is read-only in this launch");
  }
  const Span* const near = core.launch->gm->nearest(at);
  if (near && at + c.bytes + 4096 > near->begin && at < near->end + 4096) {
    const long long first = static_cast<long long>(at - near->begin);
    return trap_at(Check::gm_out_of_bounds, core, c, gm,
                   what(c) + text(": bytes %lld to %lld of %s, which has %zu", first,
                                  first + static_cast<long long>(c.bytes) - 1, near->name, near->bytes()));
  }
  Finding f = finding_at(Check::host_pointer, core, c.site, "", gm);
  f.message = what(c) + ": its GM " + side + " " + hex(gm) + " is in " + (f.space.empty() ? "host memory" : f.space) +
              "; allocate it by gm_alloc, or register it for the launch";
  leave_out(core, c, std::move(f));
}

void bad_local(const Core& core, const Copy& c, const char* frame) {
  const Worker& worker = *core.worker;
  const bool sm = local_fence(c.direction) == fence_sm;
  const char* const local = to_gm(c.direction) ? c.from : c.to;
  const uintptr_t at = reinterpret_cast<uintptr_t>(local);
  if (at < 4096) {
    return trap_at(Check::null_pointer, core, c, local,
                   what(c) + ": its local side is " + (at ? hex(local) : "a null pointer"));
  }
  const bool starts_inside =
      sm ? static_cast<size_t>(local - worker.sm()) < worker.sm_bytes() : local >= frame && local < core.lm_top;
  const char* const space = sm ? "SM" : "LM";
  if (starts_inside) {
    const size_t room =
        sm ? worker.sm_bytes() - static_cast<size_t>(local - worker.sm()) : static_cast<size_t>(core.lm_top - local);
    return trap_at(Check::dma_overflow, core, c, local, what(c) + text(": %s ends after %zu of them", space, room));
  }
  Finding f = finding_at(Check::dma_address, core, c.site, "", local);
  if (f.space == "LM" && f.object != "stack") f.check = name_of(Check::lm_foreign);
  const std::string got = f.space.empty() ? "host memory" : f.space + (f.object.empty() ? "" : " (" + f.object + ")");
  f.message = what(c) + ": expected its local side in this core's " + space + ", got " + hex(local) + " in " + got;
  leave_out(core, c, std::move(f));
}

void bad_group_shared(const Core& core, const Copy& c) {
  trap_at(Check::group_shared_cores, core, c, to_gm(c.direction) ? c.from : c.to,
          what(c) + text(": group-shared memory needs a launch of at most 16 cores, one per group; this one has %d",
                         core.launch->cores));
}

// An operation on more bytes than the compiler knows the object to have. Returns where the copy's own checks say it
// better.
void beyond_object(const Core& core, const char* operation, const char* local, long long bytes, size_t room,
                   Site site) {
  const size_t n = static_cast<size_t>(bytes), in_sm = static_cast<size_t>(local - core.worker->sm());
  const bool lm = local >= core.fiber->low && local < core.lm_top && n <= static_cast<size_t>(core.lm_top - local);
  const bool sm = in_sm < core.worker->sm_bytes() && n <= core.worker->sm_bytes() - in_sm;
  if (!lm && !sm) return;
  Finding f = finding_at(lm ? Check::lm_object_overflow : Check::sm_object_overflow, core, site,
                         text("%s of %zu bytes: only %zu are left of the object", operation, n, room));
  describe_end(&f, core, local, room);
  trap(std::move(f));
}

// Does it lie in one object?
bool is_sm_object(const Core& core, const Copy& c) {
  const Module& module = *core.launch->kernel->module;
  if (!module.has_symbols) return true;
  const char* const local = to_gm(c.direction) ? c.from : c.to;
  const size_t offset = static_cast<size_t>(local - core.worker->sm());
  const Symbol* const object = module.sm_object_at(offset);
  if (!object) {
    trap_at(Check::dma_address, core, c, local, what(c) + ": its local side is outside of every __shared__ object");
    return false;
  }
  if (offset - object->begin + c.bytes > object->bytes) {
    trap_at(Check::sm_object_overflow, core, c, local,
            what(c) + text(": %s has %zu bytes, of which %zu are left", variable_of(object->name).c_str(),
                           object->bytes, object->bytes - (offset - object->begin)));
    return false;
  }
  return true;
}

// The DMA engine: checks each copy as the hardware would, then does it when the policy says.

// False: it is wrong, and left out.
template <Direction D>
inline __attribute__((always_inline)) bool check_copy(Core& core, const void* from, const void* to, long long n,
                                                      Site site, const char* frame) {
  Worker& worker = *core.worker;
  const auto copy = [&] {
    return Copy{
        D, static_cast<char*>(const_cast<void*>(to)), static_cast<const char*>(from), static_cast<size_t>(n), 0, site};
  };
  if (__builtin_expect(n <= 0, 0)) {
    bad_length(core, copy(), n);
    return false;
  }
  const size_t bytes = static_cast<size_t>(n);
  const uintptr_t gm = reinterpret_cast<uintptr_t>(to_gm(D) ? to : from);
  const char* const local = static_cast<const char*>(to_gm(D) ? from : to);
  Lane::Hint& hint = (to_gm(D) ? worker.lane.to : worker.lane.from)[static_cast<unsigned>(site.line) % Lane::kHints];
  if (__builtin_expect(gm < hint.begin || gm + bytes > hint.end, 0)) {
    const Span* const span = core.launch->gm->find(gm, bytes);
    if (__builtin_expect(!span || (to_gm(D) && span->read_only), 0)) {
      bad_gm(core, copy());
      return false;
    }
    hint = {span->begin, span->end};
  }
  if (local_fence(D) == fence_sm) {
    const size_t offset = static_cast<size_t>(local - worker.sm());
    if (__builtin_expect(offset >= worker.sm_bytes() || bytes > worker.sm_bytes() - offset, 0)) {
      bad_local(core, copy(), frame);
      return false;
    }
    if (__builtin_expect(!is_sm_object(core, copy()), 0)) return false;
  } else {
    if (__builtin_expect(local < frame || local >= core.lm_top || bytes > static_cast<size_t>(core.lm_top - local),
                         0)) {
      bad_local(core, copy(), frame);
      return false;
    }
    if (__builtin_expect((D == gm2gsm || D == gsm2gm) && core.launch->cores > kGroups, 0)) {
      bad_group_shared(core, copy());
      return false;
    }
  }
  return true;
}

constexpr unsigned char kInFlight = 0xA5;  // what the destination of a copy holds until it is done

// A buffer in LM below the caller's frame belonged to a function that has returned.
bool is_dead(const Core& core, const Copy& c, const char* frame) {
  const char* const local = to_gm(c.direction) ? c.from : c.to;
  return local_fence(c.direction) == fence_lm && local < frame && local >= core.fiber->low;
}

void complain(const Core& core, const Copy& c, const char* what) {
  report_once(Check::write_in_flight, core, c.site, [&] {
    return finding_at(Check::write_in_flight, core, c.site,
                      text("%s of %zu bytes: %s before a fence", direction_name(c.direction), c.bytes, what),
                      to_gm(c.direction) ? c.from : c.to);
  });
}

void perform(Core& core, const Copy& c, const char* frame) {
  const char* const kept = core.dma.sources.data() + c.kept;
  if (is_dead(core, c, frame)) {
    complain(core, c, "the function that owns the buffer returned");
    if (to_gm(c.direction)) raw_copy(c.to, kept, c.bytes);
    return;
  }
  if (to_gm(c.direction)) {
    if (!std::equal(c.from, c.from + c.bytes, kept)) complain(core, c, "its source was overwritten");
  } else if (!core.launch->options->model.dma_fifo) {
    const auto written = [](char b) { return static_cast<unsigned char>(b) != kInFlight; };
    if (std::any_of(c.to, c.to + c.bytes, written)) {
      complain(core, c, "its destination was written");
    }
  }
  raw_copy(c.to, c.from, c.bytes);
}

// Does those of the pending copies that `chosen` picks, in order of issue, or in reverse where order is not promised.
template <class F>
void perform_if(Core& core, const char* frame, F chosen) {
  std::vector<Copy>& pending = core.dma.pending;
  const bool fifo = core.launch->options->model.dma_fifo;
  const auto done = pick(pending.begin(), pending.end(), fifo, chosen) - pending.begin();
  for (auto i = 0 * done; i < done; ++i) {
    const Copy c = pending[static_cast<size_t>(fifo ? i : done - 1 - i)];
    perform(core, c, frame);
  }
  pending.erase(pending.begin(), pending.begin() + done);
  if (pending.empty()) core.dma.sources.clear();
}

// Random progress of the engine since the last call.
void perform_some(Core& core, const char* frame) {
  const Options& options = *core.launch->options;
  std::vector<Copy>& pending = core.dma.pending;
  if (options.dma != DmaPolicy::random || pending.empty()) return;
  Random random(options.seed, Random::dma_order,
                static_cast<uint64_t>(core.cluster) << 48 | static_cast<uint64_t>(core.id) << 40 |
                    static_cast<uint64_t>(core.worker->epoch() & 0xFFFFF) << 20 | (core.calls & 0xFFFFF));
  if (options.model.dma_fifo) {
    const Copy* const end = pending.data() + random.below(static_cast<uint32_t>(pending.size()) + 1);
    perform_if(core, frame, [end](const Copy& c) { return &c < end; });
  } else {
    perform_if(core, frame, [&random](const Copy&) { return random.below(2) == 0; });
  }
}

inline __attribute__((always_inline)) void count(Core* core, Direction d, uintptr_t gm, size_t bytes) {
  Counters& counters = core->worker->counters;
  ++counters.dma_ops[d];
  counters.dma_bytes[d] += bytes;
  core->dma_bytes += bytes;
  const uintptr_t end = gm + bytes;
  counters.gm_lines += ((end - 1) >> 6) - (gm >> 6) + 1;
  if (to_gm(d)) {
    const bool first = gm & 63, last = end & 63;
    counters.partial_lines += first && last && gm >> 6 == end >> 6 ? 1u : unsigned{first} + unsigned{last};
  }
}

void defer(Core* core, Copy* c, bool sync, const char* frame) {
  if (to_gm(c->direction)) {
    std::vector<char>& kept = core->dma.sources;
    c->kept = kept.size();
    kept.resize(c->kept + c->bytes);
    raw_copy(kept.data() + c->kept, c->from, c->bytes);
  }
  raw_fill(c->to, kInFlight, c->bytes);
  core->dma.pending.push_back(*c);
  if (!sync) return perform_some(*core, frame);
  const Model& model = core->launch->options->model;
  perform_if(*core, frame, [&model, c](const Copy& other) { return drains(c->direction, other, model); });
}

// Extra work of a copy in a launch with a checker, a timeline or pending copies.
[[gnu::noinline]] void copy_watched(Core* core, Copy c, bool sync, const char* frame) {
  if (checker) checker->copy_issued(*core, c, sync);
  if (tracing()) trace_copy(*core, c, sync);
  if (core->launch->options->dma == DmaPolicy::eager) {
    raw_copy(c.to, c.from, c.bytes);
  } else {
    defer(core, &c, sync, frame);
  }
  if (sync && checker) checker->copies_finished(*core, c.direction);
}

template <Direction D, bool kSync>
inline __attribute__((always_inline)) void copy(const void* from, void* to, long long n, Site site, Caller caller) {
  Core* const core = enter(site, caller);
  if (to_gm(D) && fenced(*core, site)) fence(local_fence(D), site, caller);
  if (__builtin_expect(!check_copy<D>(*core, from, to, n, site, caller.frame), 0)) return;
  const size_t bytes = static_cast<size_t>(n);
  count(core, D, reinterpret_cast<uintptr_t>(to_gm(D) ? to : from), bytes);
  if (__builtin_expect(core->worker->plain, 1)) return raw_copy(to, from, bytes);
  copy_watched(core, {D, static_cast<char*>(to), static_cast<const char*>(from), bytes, 0, site}, kSync, caller.frame);
}

}  // namespace

void finish_copies(Core* core) {
  // Its LM is gone, but the hardware keeps LM until the kernel ends: sources are as they were at issue.
  for (const Copy& c : core->dma.pending) {
    if (to_gm(c.direction)) {
      raw_copy(c.to, core->dma.sources.data() + c.kept, c.bytes);
    } else if (c.direction == gm2sm) {
      raw_copy(c.to, c.from, c.bytes);
    }
  }
  core->dma.clear();
}

void fence(uint32_t mask, Site site, Caller caller) {
  Core* const core = enter(site, caller);
  const char* const frame = caller.frame;
  ++core->worker->counters.fences;
  if (__builtin_expect(core->worker->plain, 1)) return;
  if (checker) checker->fence(*core, mask);
  if (tracing()) trace_fence(*core, mask, site);
  if (core->dma.pending.empty()) return;
  const Model& model = core->launch->options->model;
  perform_if(*core, frame, [mask, &model](const Copy& c) { return completes(c, mask, model); });
  perform_some(*core, frame);
}

}  // namespace xpu_sim::rt

namespace xpu_sim::detail {

// Out of line: whatever a kernel keeps in registers is in memory when a copy looks at it.
#define XPU_SIM_COPY(DIRECTION)                                                    \
  void copy_##DIRECTION(const void* from, void* to, long long bytes, Site site) {  \
    rt::copy<xpu_sim::DIRECTION, true>(from, to, bytes, site, XPU_SIM_CALLER);     \
  }                                                                                \
  void issue_##DIRECTION(const void* from, void* to, long long bytes, Site site) { \
    rt::copy<xpu_sim::DIRECTION, false>(from, to, bytes, site, XPU_SIM_CALLER);    \
  }

XPU_SIM_COPY(gm2lm)
XPU_SIM_COPY(lm2gm)
XPU_SIM_COPY(gm2sm)
XPU_SIM_COPY(sm2gm)
XPU_SIM_COPY(gm2gsm)
XPU_SIM_COPY(gsm2gm)

void narrow_store(const char* operation, const void* to, long long bytes, long long element, Site site) {
  const rt::Core& core = *rt::enter(site, XPU_SIM_CALLER);
  rt::report_once(rt::Check::narrow_store, core, site, [&] {
    return rt::finding_at(rt::Check::narrow_store, core, site,
                          rt::text("%s of %lld bytes into elements of %lld: it writes only a part of the last one",
                                   operation, bytes, element),
                          to);
  });
}

void copies_elements(int bytes) { rt::current()->source_element = bytes; }

void beyond_object(const char* operation, uintptr_t local, long long bytes, size_t room, Site site) {
  const rt::Core& core = *rt::enter(site, XPU_SIM_CALLER);
  rt::beyond_object(core, operation, reinterpret_cast<const char*>(local), bytes, room, site);
}

using namespace xpu_sim::rt;

void simd_unaligned(const void* address, Site site) {
  Core* const core = enter(site, XPU_SIM_CALLER);
  trap_or_go_on(
      finding_at(Check::simd_unalign, *core, site,
                 text("expected an address aligned to 64 bytes for a vector load or store, got one %u bytes after that",
                      static_cast<unsigned>(reinterpret_cast<uintptr_t>(address) & 63)),
                 address));
}

bool masked_stores_write_zero() {
  const Launch* const launch = current()->launch;
  return !launch || launch->options->model.masked_stores_write_zero;
}

void no_such_cast() {}

void cast_needs_room(const void* from, long long from_bytes, void* to, long long to_bytes, Site site) {
  if (!checker || from_bytes <= 0) return;
  Core* const core = enter(site, XPU_SIM_CALLER);
  checker->room(*core, from, static_cast<size_t>(from_bytes), site);
  checker->room(*core, to, static_cast<size_t>(to_bytes), site);
}

}  // namespace xpu_sim::detail
