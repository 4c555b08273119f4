#include "report.h"

#include <cxxabi.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <typeinfo>
#include <utility>

#include "checker.h"
#include "dwarf.h"
#include "forks.h"
#include "json.h"
#include "trace.h"
#include "worker.h"

namespace xpu_sim {

namespace {

// Limit the memory for kernels with many findings.
constexpr size_t kMax = 1000;

struct Store {
  std::vector<Finding> findings;
  void (*listener)(const Finding&) = nullptr;
};

Store& store() {
  static Store* const s = new Store;
  return *s;
}

std::atomic<uint64_t> made{0};

thread_local std::vector<Finding> of_last_launch;

// Of the same check at the same place, and as certain.
bool same(const Finding& a, const Finding& b) {
  return a.at.line == b.at.line && a.check == b.check && a.severity == b.severity && a.kernel == b.kernel &&
         a.at.file == b.at.file;
}

// False: it is counted, or there are too many.
bool add(std::vector<Finding>* all, const Finding& finding) {
  for (Finding& known : *all) {
    if (same(known, finding)) {
      ++known.count;
      return false;
    }
  }
  if (all->size() >= kMax) return false;
  all->push_back(finding);
  return true;
}

std::string line_of(const Location& where) {
  std::string s = where.file.empty() ? std::string("unknown line") : where.file;
  if (where.line > 0) s += ":" + std::to_string(where.line);
  return s;
}

std::string json_of(const Location& where) {
  return Json().add("file", where.file).add("line", where.line).add("function", where.function).text();
}

std::string json_of(const std::vector<Location>& all) {
  return json_array(all, [](const Location& one) { return json_of(one); });
}

}  // namespace

namespace rt {

uint64_t findings_made() { return made.load(std::memory_order_relaxed); }

void keep(const Finding& finding, std::vector<Finding>* of_launch) {
  made.fetch_add(1, std::memory_order_relaxed);
  Store& s = store();
  void (*listener)(const Finding&) = nullptr;
  {
    const std::lock_guard<std::mutex> lock(lock_of(Shared::findings));
    add(of_launch, finding);
    if (add(&s.findings, finding)) listener = s.listener;
  }
  if (tracing()) trace_finding(finding);
  if (listener) listener(finding);
}

void count_again(const Finding& finding, long count, std::vector<Finding>* of_launch) {
  const std::lock_guard<std::mutex> lock(lock_of(Shared::findings));
  for (std::vector<Finding>* const all : {of_launch, &store().findings}) {
    for (Finding& known : *all) {
      if (same(known, finding)) known.count += count;
    }
  }
}

void launch_found(std::vector<Finding> findings) {
  if (!findings.empty() || !of_last_launch.empty()) of_last_launch = std::move(findings);
}

}  // namespace rt

std::vector<Finding> take_findings() {
  const std::lock_guard<std::mutex> lock(rt::lock_of(rt::Shared::findings));
  return std::exchange(store().findings, {});
}

std::vector<Finding> take_last_findings() {
  std::vector<Finding> mine = std::exchange(of_last_launch, {});
  if (mine.empty()) return mine;
  const std::lock_guard<std::mutex> lock(rt::lock_of(rt::Shared::findings));
  std::vector<Finding>& all = store().findings;
  const auto is_mine = [&mine](const Finding& f) {
    return std::any_of(mine.begin(), mine.end(), [&f](const Finding& m) { return same(m, f); });
  };
  all.erase(std::remove_if(all.begin(), all.end(), is_mine), all.end());
  return mine;
}

size_t finding_count() {
  const std::lock_guard<std::mutex> lock(rt::lock_of(rt::Shared::findings));
  return store().findings.size();
}

void on_finding(void (*listener)(const Finding&)) {
  const std::lock_guard<std::mutex> lock(rt::lock_of(rt::Shared::findings));
  store().listener = listener;
}

const char* severity_name(Severity severity) {
  static constexpr const char* kNames[] = {"defect", "depends", "notice"};
  return kNames[static_cast<int>(severity)];
}

// k.xpu:12: race: core 3 of cluster 0 in verify<float>: ...
//   object: SM counts + 12
std::string to_text(const Finding& f) {
  std::string s = f.at.file.empty() ? f.kernel : line_of(f.at);
  s += ": " + f.check + ": " + f.message + "\n  in " + f.kernel;
  if (f.core >= 0) s += ", cluster " + std::to_string(f.cluster) + ", core " + std::to_string(f.core);
  if (f.epoch > 0) s += ", after " + std::to_string(f.epoch) + (f.epoch == 1 ? " barrier" : " barriers");
  s += "\n";
  if (f.severity == Severity::depends) s += "  depends on " + f.decides + "\n";
  if (f.severity == Severity::notice) s += "  a notice: right on every device\n";
  for (const Location& l : f.inside) s += "  inside " + line_of(l) + " (" + l.function + ")\n";
  for (const Location& caller : f.callers) s += "  called at " + line_of(caller) + " (" + caller.function + ")\n";
  if (!f.space.empty()) {
    s += "  object: " + f.space + (f.object.empty() ? "" : " " + f.object);
    if (f.offset >= 0) {
      s += f.space == "LM" && f.object.compare(0, 5, "stack") == 0
               ? ", " + std::to_string(f.offset) + " bytes below its top"
               : " + " + std::to_string(f.offset);
    }
    s += "\n";
  }
  if (!f.other.empty()) s += "  other access: " + f.other + "\n";
  if (!f.order.empty()) s += "  breaks if: " + f.order + "\n";
  if (!f.follows.empty()) s += "  may follow from: " + f.follows + "\n";
  if (!f.replay.empty()) s += "  replay with: " + f.replay + "\n";
  return s;
}

std::string to_json(const std::vector<Finding>& findings) {
  return json_array(findings, [](const Finding& f) {
    Json one;
    one.add("check", f.check).add("severity", severity_name(f.severity)).add("decides", f.decides);
    one.add("message", f.message).add("kernel", f.kernel);
    one.add("cluster", f.cluster).add("core", f.core).add("epoch", f.epoch);
    one.add_raw("at", json_of(f.at)).add_raw("callers", json_of(f.callers)).add_raw("inside", json_of(f.inside));
    one.add("space", f.space).add("object", f.object).add("offset", f.offset);
    one.add("other", f.other)
        .add("order", f.order)
        .add("follows", f.follows)
        .add("replay", f.replay)
        .add("count", f.count);
    return one.text();
  }, true);
}

namespace {

thread_local Counters last;

struct Reports {
  std::vector<const rt::KernelInfo*> kernels;
  std::vector<KernelReport> reports;
  void (*listener)(const KernelReport&) = nullptr;
};

Reports& reports() {
  static Reports* const r = new Reports;
  return *r;
}

constexpr const char* kDirections[directions] = {"GM2LM", "LM2GM", "GM2SM", "SM2GM", "GM2GSM", "GSM2GM"};

// The counters besides copies, as text and JSON name them; `sum`: over launches and workers, else the largest counts.
struct Field {
  uint64_t Counters::* value;
  bool sum;
  const char *key, *text;
};
constexpr Field kFields[] = {
    {&Counters::gm_lines, true, "gm_lines", "64-byte lines of GM"},
    {&Counters::partial_lines, true, "partial_lines", "lines written in part"},
    {&Counters::scalar_gm, true, "scalar_gm", "scalar accesses to GM"},
    {&Counters::fences, true, "fences", "fences"},
    {&Counters::barriers, true, "barriers", "barriers"},
    {&Counters::max_core_dma_bytes, false, "max_core_dma_bytes", "bytes copied by the busiest core"},
    {&Counters::max_core_accesses, false, "max_core_accesses", "accesses of the busiest core"},
    {&Counters::lm_high, false, "lm_high", "most LM in use"},
    {&Counters::sm_bytes, false, "sm_bytes", "SM"},
};

}  // namespace

namespace rt {

void merge(Counters* into, const Counters& from) {
  for (int d = 0; d < directions; ++d) {
    into->dma_ops[d] += from.dma_ops[d];
    into->dma_bytes[d] += from.dma_bytes[d];
  }
  for (const Field& f : kFields) {
    uint64_t& value = into->*f.value;
    value = f.sum ? value + from.*f.value : std::max(value, from.*f.value);
  }
}

void record(const KernelInfo& kernel, int clusters, int cores, const Counters& counters) {
  last = counters;
  std::unique_lock<std::mutex> lock(rt::lock_of(rt::Shared::reports));
  Reports& r = reports();
  const size_t i = static_cast<size_t>(std::find(r.kernels.begin(), r.kernels.end(), &kernel) - r.kernels.begin());
  if (i == r.kernels.size()) {
    r.kernels.push_back(&kernel);
    r.reports.emplace_back().kernel = kernel.name;
  }
  KernelReport& report = r.reports[i];
  ++report.launches;
  report.clusters = clusters;
  report.cores = cores;
  merge(&report.counters, counters);
  void (*const listener)(const KernelReport&) = r.listener;
  lock.unlock();
  if (listener) listener({kernel.name, 1, clusters, cores, counters});
}

}  // namespace rt

const char* direction_name(int direction) { return kDirections[direction]; }

const Counters& last_counters() { return last; }

std::vector<KernelReport> report() {
  const std::lock_guard<std::mutex> lock(rt::lock_of(rt::Shared::reports));
  return reports().reports;
}

void reset_report() {
  const std::lock_guard<std::mutex> lock(rt::lock_of(rt::Shared::reports));
  reports().kernels.clear();
  reports().reports.clear();
}

void on_launch(void (*listener)(const KernelReport&)) {
  const std::lock_guard<std::mutex> lock(rt::lock_of(rt::Shared::reports));
  reports().listener = listener;
}

std::string to_text(const std::vector<KernelReport>& reports) {
  std::string s;
  for (const KernelReport& r : reports) {
    const Counters& c = r.counters;
    s += r.kernel + ": " + std::to_string(r.launches) + (r.launches == 1 ? " launch" : " launches") + ", last " +
         std::to_string(r.clusters) + " x " + std::to_string(r.cores) + "\n";
    for (int d = 0; d < directions; ++d) {
      if (c.dma_ops[d]) {
        s += std::string("  ") + kDirections[d] + ": " + std::to_string(c.dma_bytes[d]) + " bytes in " +
             std::to_string(c.dma_ops[d]) + " copies\n";
      }
    }
    for (const Field& f : kFields) {
      if (c.*f.value) s += std::string("  ") + f.text + ": " + std::to_string(c.*f.value) + "\n";
    }
  }
  return s;
}

std::string to_json(const std::vector<KernelReport>& reports) {
  return json_array(reports, [](const KernelReport& r) {
    const Counters& c = r.counters;
    Json copies;
    for (int d = 0; d < directions; ++d) {
      copies.add_raw(kDirections[d], Json().add("ops", c.dma_ops[d]).add("bytes", c.dma_bytes[d]).text());
    }
    Json one;
    one.add("kernel", r.kernel).add("launches", r.launches).add("clusters", r.clusters).add("cores", r.cores);
    one.add_raw("dma", copies.text());
    for (const Field& f : kFields) one.add(f.key, c.*f.value);
    return one.text();
  }, true);
}

}  // namespace xpu_sim

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
  f.follows = core.worker->left_out;
  f.replay = to_string(*core.launch->options);
  return f;
}

std::string site_text(Site site) { return site.file ? text("%s:%d", site.file, site.line) : "its start"; }

// "core 3", "cores 3-7, 9". Of many ranges, the first ones.
std::string ranges(const std::vector<int>& ids) {
  constexpr int kRanges = 8;
  std::string all = ids.size() == 1 ? "core " : "cores ";
  int count = 0;
  for (size_t i = 0; i < ids.size(); ++count) {
    if (count == kRanges) return all + text(", ... (%zu cores)", ids.size());
    size_t last = i;
    while (last + 1 < ids.size() && ids[last + 1] == ids[last] + 1) ++last;
    all += (count ? ", " : "") + (last == i ? text("%d", ids[i]) : text("%d-%d", ids[i], ids[last]));
    i = last + 1;
  }
  return all;
}

// The return addresses from the instruction `pc` of the running core up to its kernel, itself first. Kernels of
// checking builds keep frame pointers; others have only the first.
std::vector<const void*> return_addresses(const Core& core, const void* pc) {
  std::vector<const void*> all{pc};
  if (!checker || !checker->has_frame_pointers() || &core != current()) return all;
  const auto inside = [&core](const void* const* frame) {
    const char* const p = reinterpret_cast<const char*>(frame);
    return p >= core.fiber->low && p < core.lm_top - 16 && reinterpret_cast<uintptr_t>(p) % 8 == 0;
  };
  bool reached = false;
  const void* const* frame = static_cast<const void* const*>(__builtin_frame_address(0));
  while (inside(frame) && all.size() < 16) {
    if (reached) all.push_back(frame[1]);
    reached = reached || frame[1] == pc;
    const void* const* const above = static_cast<const void* const*>(frame[0]);
    if (above <= frame) break;
    frame = above;
  }
  return all;
}

bool ends_with(const std::string& s, const char* end) {
  const size_t n = std::strlen(end);
  return s.size() >= n && s.compare(s.size() - n, n, end) == 0;
}

// What calls the kernel, into which the kernel may be inlined.
bool is_launcher(const Location& l) {
  return ends_with(l.file, "xpu_sim/launch.h") || ends_with(l.file, "xpu_sim/chevron.h");
}

// Where the core is, and from where it came there. A return address is the instruction after a call, of another line
// perhaps.
std::vector<Location> call_path(const Core& core, const void* pc) {
  core.finding_pc = pc;
  std::vector<Location> all;
  for (const void* address : return_addresses(core, pc)) {
    for (Location& l : locate_inlined(static_cast<const char*>(address) - 1)) {
      if (is_launcher(l)) return all;
      if (!l.file.empty()) all.push_back(std::move(l));
    }
  }
  return all;
}

// The way to a finding, innermost place first; it begins at `from`. The head is the innermost line of the kernel's own
// file: that is where its author looks. What happened in a header of the emulator or one that kernels share is inside.
void set_path(Finding* f, std::vector<Location>& way, std::vector<Location>::iterator from) {
  const auto head = std::find_if(from, way.end(), [&way](const Location& l) { return l.file == way.back().file; });
  f->at = *head;
  f->inside.assign(from, head);
  f->callers.assign(head + 1, way.end());
}

void locate_builtin(Finding* finding, const Core& core, Site site) {
  Finding& f = *finding;
  if (site.file) f.at.file = site.file;
  f.at.line = site.line;
  // The line may be of an earlier call, or of another core's: then the way there is not known any more.
  if (!core.last_pc || site.line != core.last.line || site.file != core.last.file) return;
  std::vector<Location> all = call_path(core, core.last_pc);
  // A helper of the dialect's own, such as LmPtr, passes on the line it was called from.
  auto here = std::find_if(all.begin(), all.end(),
                           [&f](const Location& l) { return l.file == f.at.file && l.line == f.at.line; });
  if (here == all.end()) here = all.begin();
  if (here == all.end()) return;
  if (site.file) here->file = f.at.file, here->line = f.at.line;
  set_path(&f, all, here);
}

void locate_instruction(Finding* f, const Core& core, const void* pc) {
  std::vector<Location> all = call_path(core, pc);
  if (all.empty()) {
    f->at = locate(static_cast<const char*>(pc) - 1);
  } else {
    set_path(f, all, all.begin());
  }
}

}  // namespace

Finding finding_at(Check check, const Core& core, At at, std::string message, const void* address) {
  const WatchdogHold making(&core.worker->watch);
  Finding f = of_core(check, core, std::move(message));
  at.pc ? locate_instruction(&f, core, at.pc) : locate_builtin(&f, core, at.site);
  if (address) describe(&f, core, address);
  return f;
}

Finding depending(Finding finding, const char* flag) {
  finding.severity = Severity::depends;
  finding.decides = std::string("model.") + flag;
  return finding;
}

void report(Check check, const Core& core, Finding finding) {
  const bool ends = ends_launch(check) || core.launch->options->halt_on_first;
  if (!core.worker->repeats) {
    const WatchdogHold keeping(&core.worker->watch);
    const Finding mine = std::move(finding);  // see trap()
    keep(mine, &core.launch->findings);
  }
  if (ends) core.worker->end_launch();
}

Reported* first_time(Check check, Severity severity, const Core& core, At at) {
  std::vector<Reported>& reported = core.worker->reported;
  for (Reported& t : reported) {
    if (!(t.at == at) || t.check != check || t.severity != severity) continue;
    ++t.count;
    return nullptr;
  }
  reported.push_back({check, severity, at, {}, 1});
  return &reported.back();
}

void trap(Finding finding) {
  Worker& worker = *current()->worker;
  worker.watch.hold();
  if (!worker.repeats) {
    const Finding mine = std::move(finding);  // this stack is never unwound: free what it holds
    keep(mine, &worker.launch()->findings);
  }
  worker.end_launch();
}

void trap_or_go_on(Finding finding) {
  Worker& worker = *current()->worker;
  if (!worker.launch()->options->keep_going) trap(std::move(finding));
  const WatchdogHold keeping(&worker.watch);
  if (!worker.repeats) keep(finding, &worker.launch()->findings);
}

namespace {

// Calls f(code, frame) for the function on the running core's stack whose frame holds the address, in a build that
// keeps frame pointers; until it says true.
template <class F>
bool in_frame_of(const Core& core, const char* at, F f) {
  if (!checker || !checker->has_frame_pointers() || !core.finding_pc || &core != current()) return false;
  const void* const* frame = static_cast<const void* const*>(__builtin_frame_address(0));
  for (int depth = 0; depth < 32; ++depth) {
    const void* const* const above = static_cast<const void* const*>(frame[0]);
    const char* const p = reinterpret_cast<const char*>(above);
    if (p <= reinterpret_cast<const char*>(frame) || p > core.lm_top) return false;
    if (at >= p) {
      frame = above;
      continue;
    }
    const StackFrame found{reinterpret_cast<uintptr_t>(above), reinterpret_cast<uintptr_t>(frame + 2)};
    // Between a kernel and the runtime may lie a function without a frame of its own.
    for (const void* code : {frame[1], core.finding_pc}) {
      if (f(static_cast<const char*>(code) - 1, found)) return true;
    }
    return false;
  }
  return false;
}

bool name_variable(Finding* f, const Core& core, const char* at) {
  return in_frame_of(core, at, [f, at](const char* code, const StackFrame& frame) {
    f->object = local_variable(code, frame, at, &f->offset);
    return !f->object.empty();
  });
}

}  // namespace

Scalar scalar_at(const Core& core, const void* address, const void* pc) {
  const char* const at = static_cast<const char*>(address);
  const size_t offset = static_cast<size_t>(at - core.worker->sm());
  Scalar s;
  if (offset < core.worker->sm_bytes()) {
    s = sm_scalar(*core.launch->kernel->module, offset);
    s.begin += reinterpret_cast<uintptr_t>(core.worker->sm());
    return s;
  }
  core.finding_pc = pc;
  in_frame_of(core, at, [&s, at](const char* code, const StackFrame& frame) {
    s = local_scalar(code, frame, at);
    return s.described;
  });
  return s;
}

void describe(Finding* f, const Core& core, const void* address) {
  const char* const at = static_cast<const char*>(address);
  Worker& worker = *core.worker;
  if (const Fiber* fiber = worker.stacks().owner(at)) {
    f->space = "LM";
    for (int i = 0; i < core.launch->cores; ++i) {
      const Core& owner = worker.core(i);
      if (owner.fiber != fiber) continue;
      if (i == core.id && name_variable(f, core, at)) return;
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
  if (const std::string freed = freed_gm(address, &f->offset); !freed.empty()) {
    f->space = "freed GM";
    f->object = freed;
    return;
  }
  const uintptr_t a = reinterpret_cast<uintptr_t>(address);
  const Span* span = core.launch->gm->find(a, 1);
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

void describe_end(Finding* f, const Core& core, const void* address, size_t room) {
  const int back = room == 0;
  describe(f, core, static_cast<const char*>(address) - back);
  if (f->offset >= 0 && f->object.compare(0, 5, "stack") != 0) f->offset += back;
}

namespace {

std::string thrown(const std::string& what) { return "the kernel threw " + what + "; kernels cannot throw"; }

}  // namespace

void throw_trap(const Core& core, void* object, const std::type_info& type) {
  std::string what = demangled(type.name());
  void* as_exception = object;
  if (typeid(std::exception).__do_catch(&type, &as_exception, 1)) {
    what += std::string(": ") + static_cast<const std::exception*>(as_exception)->what();
  }
  trap(finding_at(Check::exception, core, Site(), thrown(what)));
}

void exception_trap(const Core& core) {
  std::string what = "an exception";
  try {
    throw;
  } catch (const std::exception& e) {
    what = demangled(typeid(e).name()) + ": " + e.what();
  } catch (...) {
    if (const std::type_info* type = abi::__cxa_current_exception_type()) what = demangled(type->name());
  }
  trap(finding_at(Check::exception, core, core.last, thrown(what)));
}

std::string positions(Worker& worker) {
  std::string all;
  const int cores = worker.launch()->cores;
  const auto where = [&worker](int i) {
    const Core& core = worker.core(i);
    const uint64_t bit = uint64_t{1} << i;
    if (worker.finished() & bit) return std::string("returned");
    if (worker.waiting() & bit) return "waits at " + site_text(core.last);
    if (&core == current()) return std::string("running");
    if (!core.fiber) return std::string("not started");
    return "after " + site_text(core.last);
  };
  // The cores of each place, in the order of their first ones.
  std::vector<std::pair<std::string, std::vector<int>>> places;
  for (int i = 0; i < cores; ++i) {
    std::string at = where(i);
    const auto is_it = [&at](const auto& place) { return place.first == at; };
    const auto known = std::find_if(places.begin(), places.end(), is_it);
    if (known == places.end()) {
      places.emplace_back(std::move(at), std::vector<int>{i});
    } else {
      known->second.push_back(i);
    }
  }
  constexpr size_t kPlaces = 5;
  size_t others = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    const auto& [at, ids] = places[i];
    if (i < kPlaces) {
      all += "\n    " + ranges(ids) + ": " + at;
    } else {
      others += ids.size();
    }
  }
  return others ? all + text("\n    and %zu cores elsewhere", others) : all;
}

void deadlock_trap(Worker& worker) {
  // The core that arrived last, or an arbitrary one that waits, stands for all.
  const int core = __builtin_ctzll(worker.waiting());
  const Core& waits = worker.core(core);
  Finding f = finding_at(Check::deadlock, waits, waits.last, "no core can continue:" + positions(worker));
  const bool some_have_gone = worker.finished() && !waits.launch->options->model.exit_counts_as_arrival;
  trap(some_have_gone ? depending(std::move(f), "exit_counts_as_arrival") : std::move(f));
}

namespace {

std::string too_long(const Core& core) {
  return text("the launch used %g s of processor time, perhaps in an endless loop:",
              core.launch->options->watchdog_seconds) +
         positions(*core.worker);
}

}  // namespace

void watchdog_trap(const Core& core, At at) {
  Finding f = finding_at(Check::watchdog, core, at, too_long(core));
  if (f.at.file.empty()) f.at = {core.last.file ? core.last.file : "", core.last.line, f.at.function};
  trap(std::move(f));
}

void report_launch(Check check, const Options& options, const std::string& kernel, std::string message,
                   std::vector<Finding>* of_launch) {
  Finding f;
  f.check = name_of(check);
  f.message = std::move(message);
  f.kernel = kernel;
  f.replay = to_string(options);
  keep(f, of_launch);
}

}  // namespace xpu_sim::rt

// Kernels call it in place of __cxa_throw (kernel/strict.h).
extern "C" __attribute__((used, visibility("hidden"), noreturn)) void xpu_sim_throw(void* object, std::type_info* type,
                                                                                    void (*destroy)(void*)) {
  using namespace xpu_sim::rt;
  if (current()->worker) throw_trap(*enter(xpu_sim::Site(), XPU_SIM_CALLER), object, *type);
  abi::__cxa_throw(object, type, destroy);
}
