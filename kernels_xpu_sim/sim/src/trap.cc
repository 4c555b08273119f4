#include "trap.h"

#include <cxxabi.h>

#include <cstdarg>
#include <cstdio>
#include <typeinfo>

#include "findings.h"
#include "worker.h"

namespace xpu_sim::rt {

const char* name_of(Check check) {
  static constexpr const char* kNames[] = {
#define XPU_SIM_NAME(id, name, ends) name,
      XPU_SIM_CHECKS(XPU_SIM_NAME)
#undef XPU_SIM_NAME
  };
  return kNames[static_cast<int>(check)];
}

bool ends_launch(Check check) {
  static constexpr bool kEnds[] = {
#define XPU_SIM_ENDS(id, name, ends) ends,
      XPU_SIM_CHECKS(XPU_SIM_ENDS)
#undef XPU_SIM_ENDS
  };
  return kEnds[static_cast<int>(check)];
}

std::string text(const char* format, ...) {
  char line[512];
  va_list args;
  va_start(args, format);
  std::vsnprintf(line, sizeof line, format, args);
  va_end(args);
  return line;
}

namespace {

Finding of_core(Check check, const Core& core, std::string message) {
  Finding f;
  f.check = name_of(check);
  f.message = std::move(message);
  f.kernel = core.launch->kernel->name;
  f.cluster = core.cluster;
  f.core = core.id;
  f.epoch = core.worker->epoch();
  f.replay = to_string(*core.launch->options);
  return f;
}

std::string place(Site site) { return site.file ? text("%s:%d", site.file, site.line) : "its start"; }

// "3", "3-7".
std::string range(int first, int last) {
  return first == last ? text("core %d", first) : text("cores %d-%d", first, last);
}

}  // namespace

Finding finding_at(Check check, const Core& core, Site site, std::string message) {
  Finding f = of_core(check, core, std::move(message));
  if (site.file) f.at.file = site.file;
  f.at.line = site.line;
  return f;
}

Finding finding_at(Check check, const Core& core, const void* pc, std::string message) {
  Finding f = of_core(check, core, std::move(message));
  f.at = locate(pc);
  return f;
}

void report(Check check, Finding finding) {
  const bool ends = ends_launch(check) || (current()->worker && current()->launch->options->halt_on_first);
  keep(std::move(finding));
  if (ends && current()->worker) current()->worker->end_launch();
}

void trap(Finding finding) {
  {
    const Finding mine = std::move(finding);  // this stack is never unwound: free what it holds
    keep(mine);
  }
  current()->worker->end_launch();
}

void describe(Finding* f, const Core& core, const void* address) {
  const char* const at = static_cast<const char*>(address);
  Worker& worker = *core.worker;
  if (const Fiber* fiber = worker.stacks().owner(at)) {
    f->space = "LM";
    for (int i = 0; i < core.launch->cores; ++i) {
      const Core& owner = worker.core(i);
      if (owner.fiber != fiber) continue;
      f->object = i == core.id ? "stack" : text("stack of core %d", i);
      f->offset = owner.lm_top - at;
    }
    return;
  }
  const size_t offset = static_cast<size_t>(at - worker.sm());
  if (worker.sm() && offset < worker.sm_bytes()) {
    f->space = "SM";
    if (const Symbol* object = core.launch->kernel->module->sm_object_near(offset)) {
      f->object = variable_of(object->name);
      f->offset = static_cast<long long>(offset - object->begin);
    }
    return;
  }
  const uintptr_t a = reinterpret_cast<uintptr_t>(address);
  const Span* span = core.launch->gm->find(a, 1, nullptr);
  if (!span) {
    const Span* const near = core.launch->gm->nearest(a);
    if (near && a + 4096 > near->begin && a < near->end + 4096) span = near;
  }
  if (span) {
    f->space = "GM";
    f->object = span->name;
    f->offset = static_cast<long long>(a - span->begin);
  }
}

void exception_trap(const Core& core) {
  std::string what = "an exception";
  try {
    throw;
  } catch (const std::exception& e) {
    what = std::string(readable(typeid(e).name())) + ": " + e.what();
  } catch (...) {
    if (const std::type_info* type = abi::__cxa_current_exception_type()) what = readable(type->name());
  }
  trap(finding_at(Check::exception, core, core.last, "the kernel threw " + what + "; kernels cannot throw"));
}

std::string positions(Worker& worker) {
  std::string all;
  const int cores = worker.launch()->cores;
  const auto where = [&worker](int i) {
    const Core& core = worker.core(i);
    const uint64_t bit = uint64_t{1} << i;
    if (worker.finished() & bit) return std::string("returned");
    if (worker.waiting() & bit) return "waits at " + place(core.last);
    if (&core == current()) return std::string("running");
    if (!core.fiber) return std::string("not started");
    return "after " + place(core.last);
  };
  for (int i = 0; i < cores;) {
    const std::string at = where(i);
    int last = i;
    while (last + 1 < cores && where(last + 1) == at) ++last;
    if (!all.empty()) all += "; ";
    all += range(i, last) + ": " + at;
    i = last + 1;
  }
  return all;
}

void deadlock_trap(Worker& worker) {
  // The core that arrived last, or an arbitrary one that waits, stands for all.
  const int core = __builtin_ctzll(worker.waiting());
  const Core& waits = worker.core(core);
  trap(finding_at(Check::deadlock, waits, waits.last, "no core can continue: " + positions(worker)));
}

namespace {

std::string too_long(const Core& core) {
  return text("the launch has used %g s of processor time; spinning? ", core.launch->options->watchdog_seconds) +
         positions(*core.worker);
}

}  // namespace

void watchdog_trap(const Core& core, Site site) { trap(finding_at(Check::watchdog, core, site, too_long(core))); }

void watchdog_trap(const Core& core, const void* pc) {
  Finding f = finding_at(Check::watchdog, core, pc, too_long(core));
  if (f.at.file.empty()) f.at = {core.last.file ? core.last.file : "", core.last.line, f.at.function};
  trap(std::move(f));
}

void lm_budget_finding(const Core& core, size_t used) {
  if (core.launch->lm_reported.exchange(true)) return;
  const std::string message =
      text("%zu bytes of LM in use, call stack included; a core has %zu", used, core.launch->lm_limit);
  report(Check::lm_budget, core.lm_pc ? finding_at(Check::lm_budget, core, core.lm_pc, message)
                                      : finding_at(Check::lm_budget, core, core.lm_site, message));
}

void report_launch(Check check, const Options& options, const std::string& kernel, std::string message) {
  Finding f;
  f.check = name_of(check);
  f.message = std::move(message);
  f.kernel = kernel;
  f.replay = to_string(options);
  keep(std::move(f));
}

}  // namespace xpu_sim::rt
