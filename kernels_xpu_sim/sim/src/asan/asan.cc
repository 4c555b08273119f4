// The AddressSanitizer build: buffers of copies in flight are poisoned until their fence, so that any access becomes a
// finding, and so are the gaps between objects in SM.
#include <cstddef>
#include <vector>

#include "../checker.h"
#include "../checks.h"
#include "../dma.h"
#include "../report.h"
#include "../worker.h"

extern "C" {
void __asan_poison_memory_region(const volatile void*, size_t);
void __asan_unpoison_memory_region(const volatile void*, size_t);
void* __asan_region_is_poisoned(void*, size_t);
const char* __asan_locate_address(void*, char*, size_t, void**, size_t*);
void __asan_report_error(void* pc, void* bp, void* sp, void* address, int write, size_t bytes, unsigned);
}

namespace xpu_sim::rt::asan {

struct State {
  std::vector<Copy> in_flight[kMaxCores];  // destinations in LM and SM are poisoned
};

// A forbidden access of the core's.
void report_access(const Core& core, const char* address, size_t bytes, bool write, At at);

namespace {

State& state(Worker& worker) { return *static_cast<State*>(worker.checker_state.get()); }

const char* local_of(const Copy& c) { return to_gm(c.direction) ? c.from : c.to; }

class AsanChecker : public Checker {
 public:
  bool frames_are_true() const override { return false; }  // red zones lie between variables

  void launch_begins(Worker& worker) override {
    if (!worker.checker_state) worker.checker_state = std::make_shared<State>();
    for (int i = 0; i < kMaxCores; ++i) worker.core(i).checker_state = worker.checker_state.get();
    for (auto& copies : state(worker).in_flight) copies.clear();
    const Module* const module = worker.launch()->kernel->module;
    if (!module || !worker.sm()) return;
    __asan_unpoison_memory_region(worker.sm(), worker.sm_bytes());
    for (const Symbol& gap : module->sm_gaps) __asan_poison_memory_region(worker.sm() + gap.begin, gap.bytes);
  }

  void core_ends(Core& core) override {
    release(core, [](const Copy&) { return true; });
  }

  void fence(Core& core, uint32_t mask) override {
    const Model& model = core.launch->options->model;
    release(core, [mask, &model](const Copy& c) { return completes(c, mask, model); });
  }

  void copy_issued(Core& core, const Copy& c, bool sync) override {
    const char* const local = local_of(c);
    if (const void* bad = __asan_region_is_poisoned(const_cast<char*>(local), c.bytes)) {
      report_access(core, static_cast<const char*>(bad), c.bytes, !to_gm(c.direction), c.site);
    }
    if (sync) return;
    static_cast<State*>(core.checker_state)->in_flight[core.id].push_back(c);
    // Reading the source of a copy is allowed while it is in flight, and poison forbids all: only destinations.
    if (!to_gm(c.direction)) __asan_poison_memory_region(local, c.bytes);
  }

  void copies_finished(Core& core, Direction direction) override {
    const Model& model = core.launch->options->model;
    release(core, [direction, &model](const Copy& c) { return drains(direction, c, model); });
  }

  void room(Core& core, const void* p, size_t bytes, Site site) override {
    if (const void* bad = __asan_region_is_poisoned(const_cast<void*>(p), bytes)) {
      report_access(core, static_cast<const char*>(bad), bytes, true, site);
    }
  }

 private:
  template <class F>
  static void release(Core& core, F chosen) {
    std::vector<Copy>& all = static_cast<State*>(core.checker_state)->in_flight[core.id];
    if (all.empty()) return;
    const auto later = pick(all.begin(), all.end(), core.launch->options->model.dma_fifo, chosen);
    for (auto c = all.begin(); c != later; ++c) {
      if (!to_gm(c->direction)) __asan_unpoison_memory_region(c->to, c->bytes);
    }
    all.erase(all.begin(), later);
  }
};

// Never destroyed: other threads may launch while the program ends.
const bool installed = (checker = new AsanChecker, true);

}  // namespace

// Called by instrumented code before a forbidden access: a finding for a kernel, AddressSanitizer's own report for host
// code.

namespace {

// The copy in flight, of any core, whose destination holds the address.
const Copy* copy_at(const State& state, const char* address) {
  for (const auto& copies : state.in_flight) {
    for (const Copy& c : copies) {
      if (!to_gm(c.direction) && address >= c.to && address < c.to + c.bytes) return &c;
    }
  }
  return nullptr;
}

Finding access_finding(const Core& core, const char* address, size_t bytes, bool write, At at) {
  const Copy* const copy = copy_at(*static_cast<const State*>(core.checker_state), address);
  Finding f = finding_at(Check::memory_fault, core, at, "", address);
  Check check = Check::memory_fault;
  const char* const kind = write ? "write" : "read";
  if (copy) {
    check = write ? Check::write_in_flight : Check::read_in_flight;
    f.message = text("%s of the destination of a copy in flight; fence first", kind);
    f.other = text("%s_ASYNC of %zu bytes at %s:%d", direction_name(copy->direction), copy->bytes, copy->site.file,
                   copy->site.line);
  } else if (f.space == "LM") {
    check = Check::lm_object_overflow;
    char name[128] = "";
    void* begin = nullptr;
    size_t size = 0;
    __asan_locate_address(const_cast<char*>(address), name, sizeof name, &begin, &size);
    f.message = text("%s of %zu bytes in LM outside of every live object", kind, bytes);
    if (*name) f.object = text("next to %s, which has %zu bytes", name, size);
  } else if (f.space == "SM") {
    check = Check::sm_object_overflow;
    f.message = text("%s of %zu bytes in SM outside of every __shared__ object", kind, bytes);
  } else if (f.space == "GM") {
    check = Check::gm_out_of_bounds;
    f.message = text("%s of %zu bytes at byte %lld of %s", kind, bytes, f.offset, f.object.c_str());
  } else if (f.space == "freed GM") {
    check = Check::freed_memory;
    f.message = text("%s of %zu bytes at byte %lld of %s, which was freed", kind, bytes, f.offset, f.object.c_str());
  } else {
    f.message = text("%s of %zu bytes at 0x%llx, which is not accessible", kind, bytes,
                     static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(address)));
  }
  f.check = name_of(check);
  return f;
}

}  // namespace

void report_access(const Core& core, const char* address, size_t bytes, bool write, At at) {
  // Only the use of what is in flight goes on.
  const bool in_flight = copy_at(*static_cast<const State*>(core.checker_state), address) != nullptr;
  const auto make = [&] { return access_finding(core, address, bytes, write, at); };
  if (!in_flight) trap(make());
  report_once(write ? Check::write_in_flight : Check::read_in_flight, core, at, make);
}

namespace {

void reported(void* address, size_t bytes, bool write, void* pc, void* frame) {
  const Core* const core = current();
  if (!core->worker) return __asan_report_error(pc, frame, frame, address, write, bytes, 0);
  report_access(*core, static_cast<const char*>(address), bytes, write, pc);
}

}  // namespace

}  // namespace xpu_sim::rt::asan

#define XPU_SIM_REPORT extern "C" __attribute__((used, visibility("hidden"))) void
#define XPU_SIM_REPORTED(P, BYTES, WRITE) \
  xpu_sim::rt::asan::reported(P, BYTES, WRITE, __builtin_return_address(0), __builtin_frame_address(0))
#define XPU_SIM_REPORTS(N)                                                                   \
  XPU_SIM_REPORT __asan_report_load##N##_noabort(void* p) { XPU_SIM_REPORTED(p, N, false); } \
  XPU_SIM_REPORT __asan_report_store##N##_noabort(void* p) { XPU_SIM_REPORTED(p, N, true); }

XPU_SIM_REPORTS(1)
XPU_SIM_REPORTS(2)
XPU_SIM_REPORTS(4)
XPU_SIM_REPORTS(8)
XPU_SIM_REPORTS(16)
XPU_SIM_REPORT __asan_report_load_n_noabort(void* p, size_t bytes) { XPU_SIM_REPORTED(p, bytes, false); }
XPU_SIM_REPORT __asan_report_store_n_noabort(void* p, size_t bytes) { XPU_SIM_REPORTED(p, bytes, true); }

// Kernels leave no heap memory, and what was left by a launch that ended early is no leak of the program's.
extern "C" __attribute__((used, visibility("default"))) const char* __asan_default_options() {
  return "detect_leaks=0:detect_stack_use_after_return=0";
}
