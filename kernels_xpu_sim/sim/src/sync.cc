// Coordinates, fences, barriers and atomics.
#define XPU_SIM_STRICT  // its functions are the ones that are called
#include "xpu_sim/kernel/sync.h"
#include "checker.h"
#include "random.h"
#include "report.h"
#include "worker.h"

namespace xpu_sim::rt {

// Coordinates, fences and barriers.

void outside_of_kernel(Site site) {
  throw std::logic_error(text("%s:%d: a kernel builtin was called outside of a kernel; launch the kernel",
                              site.file ? site.file : "?", site.line));
}

void called_often(Core* core, Site site) {
  if (core->worker->watch.limit_reached()) watchdog_trap(*core, site);
  core->calls = 0;
  core->worker->give_way();
}

namespace {

constexpr uint32_t kAllGroups = (1u << kGroups) - 1;

void wait(uint32_t groups, Site site, Caller caller) {
  Core* const core = current();
  if (core->worker && (core->launch->options->model.barrier_is_fence || fenced(*core, site))) {
    fence(fence_lm | fence_sm | fence_gm, site, caller);
  }
  enter(site, caller)->calls = 0;
  core->worker->barrier(groups, site);
}

}  // namespace

}  // namespace xpu_sim::rt

using xpu_sim::Site;
using xpu_sim::rt::current;

int core_id() noexcept { return current()->id; }
int cluster_id() noexcept { return current()->cluster; }
int core_num() noexcept { return current()->cores; }
int cluster_num() noexcept { return current()->clusters; }

void xpu_sim::detail::fence(int mask, Site s) {
  xpu_sim::rt::fence(static_cast<uint32_t>(mask) & 7u, s, XPU_SIM_CALLER);
}

void sync_cluster(Site s) { xpu_sim::rt::wait(xpu_sim::rt::kAllGroups, s, XPU_SIM_CALLER); }
void sync_all(Site s) { xpu_sim::rt::wait(xpu_sim::rt::kAllGroups, s, XPU_SIM_CALLER); }
void sync_local(Site s) {
  const auto* const core = current();
  const int group = core->worker ? core->worker->group_of(core->id) : 0;
  xpu_sim::rt::wait(1u << group, s, XPU_SIM_CALLER);
}
void sync_group(int mask, Site s) {
  xpu_sim::rt::wait(static_cast<uint32_t>(mask) & xpu_sim::rt::kAllGroups, s, XPU_SIM_CALLER);
}

namespace xpu_sim::rt {

// Load-linked and store-conditional. Cores take turns, so that a pair that no call separates is indivisible already;
// the failures that the hardware may produce are drawn by the seed.

namespace {

[[gnu::cold]] void nested(Core* core, const int* address, Site site) {
  trap_or_go_on(depending(finding_at(Check::atom_nested_err, *core, site,
                                     "a second loada, on another address, before the storea of the first", address),
                          "nested_atomics_trap"));
}

void check_in_sm(Core* core, const int* address, Site site) {
  Worker& worker = *core->worker;
  if (static_cast<size_t>(reinterpret_cast<const char*>(address) - worker.sm()) < worker.sm_bytes()) return;
  trap(finding_at(Check::dma_address, *core, site, "atomics work only on integers in SM", address));
}

bool fails(Core* core) {
  const Options& options = *core->launch->options;
  if (options.llsc_failure <= 0) return false;
  Random random(options.seed, Random::llsc,
                static_cast<uint64_t>(core->cluster) << 48 | static_cast<uint64_t>(core->id) << 32 | core->calls);
  return static_cast<double>(random.next() >> 11) * 0x1p-53 < options.llsc_failure;
}

int link(Core* core, const int* address, Site site) {
  check_in_sm(core, address, site);
  if (core->linked && core->linked != address && core->launch->options->model.nested_atomics_trap) {
    nested(core, address, site);
  }
  core->linked = address;
  if (checker) checker->atomic(*core, address, false);
  return *static_cast<const volatile int*>(address);
}

int store(Core* core, int* address, int value, Site site) {
  check_in_sm(core, address, site);
  const bool linked = core->linked == address;
  core->linked = nullptr;
  // Another core's store between takes the link away.
  if (!linked || fails(core)) return 1;
  if (checker) checker->atomic(*core, address, true);
  *static_cast<volatile int*>(address) = value;
  Worker& worker = *core->worker;
  for (int i = 0; i < core->launch->cores; ++i) {
    if (worker.core(i).linked == address) worker.core(i).linked = nullptr;
  }
  return 0;
}

}  // namespace

}  // namespace xpu_sim::rt

namespace xpu_sim::detail {

using namespace xpu_sim::rt;

int load_linked(const int* address, Site site) { return link(enter(site, XPU_SIM_CALLER), address, site); }

int store_conditional(int* address, int value, Site site) {
  return store(enter(site, XPU_SIM_CALLER), address, value, site);
}

void ticket_lock(Site site) {
  Core* const core = enter(site, XPU_SIM_CALLER);
  Worker& worker = *core->worker;
  while (worker.lock_holder >= 0) {
    if (worker.lock_holder == core->id) {
      trap(finding_at(Check::deadlock, *core, site, "the core holds the lock already"));
    }
    called_often(core, site);
  }
  worker.lock_holder = core->id;
  if (checker) checker->lock(*core, true);
}

void ticket_unlock(Site site) {
  Core* const core = enter(site, XPU_SIM_CALLER);
  core->worker->lock_holder = -1;
  if (checker) checker->lock(*core, false);
}

}  // namespace xpu_sim::detail

#if defined(__x86_64__)

// The instructions of the kernel's assembly arrive here: operands in memory, no register may change.
// These may use vector registers, hence fxsave.
namespace {

struct Operands {
  int* address;
  long long value;  // in: to store; out: loaded, or failed, as wide as the widest register
};

}  // namespace

// They have no source line: the instruction gives it. Below the operands lies the stub's return address.
static xpu_sim::rt::Core* enter_from_assembly(Operands* o) {
  using namespace xpu_sim::rt;
  return enter(xpu_sim::Site(), Caller{reinterpret_cast<char*>(o), reinterpret_cast<const void* const*>(o)[-1]});
}

extern "C" {
__attribute__((used, visibility("hidden"))) void xpu_sim_loada_slow(Operands* o) {
  o->value = xpu_sim::rt::link(enter_from_assembly(o), o->address, xpu_sim::Site());
}
__attribute__((used, visibility("hidden"))) void xpu_sim_storea_slow(Operands* o) {
  o->value = xpu_sim::rt::store(enter_from_assembly(o), o->address, static_cast<int>(o->value), xpu_sim::Site());
}
}

// clang-format off
#define XPU_SIM_STUB(NAME)                                                                               \
  ".globl " NAME "\n"                                                                                    \
  ".type " NAME ", @function\n" NAME                                                                     \
  ":\n"                                                                                                  \
  "  pushq %rbp\n"                                                                                       \
  "  movq %rsp, %rbp\n"                                                                                  \
  "  pushq %rax\n  pushq %rcx\n  pushq %rdx\n  pushq %rsi\n  pushq %rdi\n"                               \
  "  pushq %r8\n  pushq %r9\n  pushq %r10\n  pushq %r11\n"                                               \
  "  leaq 16(%rbp), %rdi\n"                                                                              \
  "  subq $576, %rsp\n"                                                                                  \
  "  andq $-64, %rsp\n"                                                                                  \
  "  fxsave64 (%rsp)\n"                                                                                  \
  "  call " NAME "_slow\n"                                                                               \
  "  fxrstor64 (%rsp)\n"                                                                                 \
  "  leaq -72(%rbp), %rsp\n"                                                                             \
  "  popq %r11\n  popq %r10\n  popq %r9\n  popq %r8\n"                                                   \
  "  popq %rdi\n  popq %rsi\n  popq %rdx\n  popq %rcx\n  popq %rax\n"                                    \
  "  popq %rbp\n"                                                                                        \
  "  ret\n"                                                                                              \
  ".size " NAME ", . - " NAME "\n"
// clang-format on

__asm__(".text\n" XPU_SIM_STUB("xpu_sim_loada") XPU_SIM_STUB("xpu_sim_storea"));

#endif
