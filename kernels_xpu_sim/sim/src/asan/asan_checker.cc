// Events of the runtime, as the AddressSanitizer build sees them: buffers of copies in flight are poisoned until their
// fence, so that any touch is reported; so are the gaps between objects in SM.
#include "../checker.h"
#include "../trap.h"
#include "../worker.h"
#include "asan_state.h"

namespace xpu_sim::rt::asan {

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

  void fence(Core& core, uint32_t mask, Site) override {
    const Model& model = core.launch->options->model;
    release(core, [mask, &model](const Copy& c) { return completes(c, mask, model); });
  }

  void copy_issued(Core& core, const Copy& c, const Span&, bool sync) override {
    const char* const local = local_of(c);
    if (const void* bad = __asan_region_is_poisoned(const_cast<char*>(local), c.bytes)) {
      report_access(core, static_cast<const char*>(bad), c.bytes, !to_gm(c.direction), nullptr, c.site);
    }
    if (sync) return;
    static_cast<State*>(core.checker_state)->in_flight[core.id].push_back(c);
    // Reading the source of a copy is allowed while it is in flight, and poison forbids all: only destinations.
    if (!to_gm(c.direction)) __asan_poison_memory_region(local, c.bytes);
  }

  void copies_finished(Core& core, Direction direction, Site) override {
    const Model& model = core.launch->options->model;
    release(core, [direction, &model](const Copy& c) { return drains(direction, c, model); });
  }

  void room(Core& core, const void* p, size_t bytes, Site site) override {
    if (const void* bad = __asan_region_is_poisoned(const_cast<void*>(p), bytes)) {
      report_access(core, static_cast<const char*>(bad), bytes, true, nullptr, site);
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

}  // namespace xpu_sim::rt::asan
