// The DMA engine: checks each copy as the hardware would, then does it when the policy says.
#include "dma.h"

#include <algorithm>

#include "builtin.h"
#include "checker.h"
#include "dma_checks.h"
#include "random.h"
#include "raw_memory.h"
#include "trace.h"
#include "trap.h"
#include "worker.h"
#include "xpu_sim/kernel/dma.h"

namespace xpu_sim::rt {

namespace {

constexpr unsigned char kInFlight = 0xA5;  // what the destination of a copy holds until it is done

// A buffer in LM below the caller's frame belonged to a function that has returned.
bool is_dead(const Core& core, const Copy& c, const char* frame) {
  const char* const local = to_gm(c.direction) ? c.from : c.to;
  return local_fence(c.direction) == fence_lm && local < frame && local >= core.fiber->low;
}

void complain(const Core& core, const Copy& c, const char* what) {
  report_once(Check::write_in_flight, core, c.site, [&] {
    Finding f = finding_at(Check::write_in_flight, core, c.site,
                           text("%s of %zu bytes: %s before a fence", direction_name(c.direction), c.bytes, what));
    describe(&f, core, to_gm(c.direction) ? c.from : c.to);
    return f;
  });
}

void perform(Core& core, const Copy& c, const char* frame) {
  const char* const kept = core.dma.sources.data() + c.kept;
  if (is_dead(core, c, frame)) {
    complain(core, c, "the function that owns the buffer has returned");
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

// What an engine with a will of its own may have done since the last call.
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

void count(Core* core, Direction d, uintptr_t gm, size_t bytes) {
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

template <Direction D, bool kSync>
inline __attribute__((always_inline)) void copy(const void* from, void* to, long long n, Site site, Caller caller) {
  Core* const core = enter(site, caller);
  const char* const frame = caller.frame;
  if (to_gm(D) && fenced(*core, site)) fence(local_fence(D), site, caller);
  Copy c{D, static_cast<char*>(to), static_cast<const char*>(from), static_cast<size_t>(n), 0, site};
  const Span* const span = check_copy(*core, c, n, frame);
  if (__builtin_expect(!span, 0)) return;
  count(core, D, reinterpret_cast<uintptr_t>(to_gm(D) ? to : from), c.bytes);
  if (checker) checker->copy_issued(*core, c, *span, kSync);
  if (tracing()) trace_copy(*core, c, kSync);
  if (core->launch->options->dma == DmaPolicy::eager) {
    raw_copy(to, from, c.bytes);
  } else {
    defer(core, &c, kSync, frame);
  }
  if (kSync && checker) checker->copies_finished(*core, D, site);
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
  if (checker) checker->fence(*core, mask, site);
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
    Finding f = rt::finding_at(
        rt::Check::narrow_store, core, site,
        rt::text("%s of %lld bytes into elements of %lld: the last one is written in part", operation, bytes, element));
    rt::describe(&f, core, to);
    return f;
  });
}

void copies_elements(int bytes) { rt::current()->source_element = bytes; }

void beyond_object(const char* operation, uintptr_t local, long long bytes, size_t room, Site site) {
  const rt::Core& core = *rt::enter(site, XPU_SIM_CALLER);
  rt::beyond_object(core, operation, reinterpret_cast<const char*>(local), bytes, room, site);
}

}  // namespace xpu_sim::detail
