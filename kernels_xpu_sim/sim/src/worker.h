// A worker runs clusters, one after the other, on one thread: the cores of a cluster take turns.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "checks.h"
#include "dma.h"
#include "faults.h"
#include "gm.h"
#include "lm.h"
#include "modules.h"
#include "xpu_sim/launch.h"
#include "xpu_sim/report.h"
#include "xpu_sim/site.h"

namespace xpu_sim::rt {

constexpr int kMaxCores = 64;
constexpr int kFaultStack = kMaxCores;
static_assert(kFaultStack + 1 == kStacksPerWorker);
constexpr int kMaxClusters = 255;
constexpr int kGroups = 16;
constexpr size_t kSmBytes = 256 * 1024;
constexpr size_t kGroupLmBytes = 32 * 1024;  // shared by the cores of a group: all of it for one core per group

class Worker;

// Where something happened: after an instruction, or in a builtin at a source line.
struct At {
  At() = default;
  At(const void* return_address) : pc(return_address) {}
  At(Site builtin) : site(builtin) {}
  bool operator==(const At& o) const { return pc == o.pc && site.line == o.site.line && site.file == o.site.file; }

  const void* pc = nullptr;
  Site site;
};

// Where a check has found something in this launch. Making a finding is slow, and a loop makes many.
struct Reported {
  Check check;
  Severity severity;
  At at;
  Finding finding;                          // what of it differs from others
  long count;
};

// One launch, shared by the workers that run it.
struct Launch {
  detail::Call call{};
  int clusters = 0, cores = 0;
  const Options* options = nullptr;
  const KernelInfo* kernel = nullptr;
  const GmTable* gm = nullptr;
  size_t lm_limit = 0;                      // bytes of LM per core
  std::vector<int> cluster_order;           // empty: natural
  std::atomic<int> next_cluster{0};
  std::atomic<bool> ended{false};           // early
  std::atomic<bool> lm_reported{false};
  int traced = 0;                           // its number in the trace
  std::vector<Finding> findings;            // of all workers; findings.cc guards it
};

struct Core : CoreView {
  Launch* launch = nullptr;
  Worker* worker = nullptr;                 // nullptr: no kernel is running
  At lm_at;                                 // where lm_low was
  Fiber* fiber = nullptr;                   // nullptr: not started, or finished
  const void* last_pc = nullptr;            // the instruction after its last call into the runtime
  mutable const void* finding_pc = nullptr; // the innermost instruction of the kernel, when a finding is made
  uint32_t wait_groups = 0;                 // the groups it waits for at a barrier
  std::vector<std::pair<char*, char*>> group_shared;  // begin and end of what of its LM is, where that has a share
  uint64_t accesses = 0;
  const int* linked = nullptr;              // an atomic's loada without its storea yet
  // Of a checking build.
  int source_element = 0;                   // of the copy that comes next: see kernel/dma.h
  bool checked = false;                     // kernel code runs
  void* checker_state = nullptr;
  const void** stores = nullptr;            // the last store to each piece of its LM: see strict/stores.h
  DmaQueue dma;
};

class Worker {
 public:
  Worker();

  // Runs clusters of the launch until none is left.
  void run(Launch* launch);

  // -- called on a core's stack
  // Waits until every core of the groups (bits) waits for the same groups, or has returned.
  void barrier(uint32_t groups, Site site);
  // Lets the other cores run.
  void give_way();
  // Ends the launch; this stack is never returned to.
  [[noreturn]] void end_launch();

  Launch* launch() const { return launch_; }
  Core& core(int i) { return cores_[i]; }
  uint64_t finished() const { return finished_; }
  uint64_t waiting() const { return waiting_; }
  Stacks& stacks() { return stacks_; }
  int group_of(int core) const { return core / cores_per_group_; }
  uint32_t epoch() const { return epoch_; }
  int cluster() const { return cluster_; }
  // The launch's SM image: the thread-local segment of the kernel's module.
  char* sm() const { return sm_; }
  size_t sm_bytes() const { return launch_->kernel->module ? launch_->kernel->module->tls_bytes : 0; }
  bool plain = false;                       // copies are done at once, and nobody looks: no checker, no timeline
  Lane lane;
  Counters counters;
  KernelCache kernels;
  GmTable registry, launch_gm;              // copies for this thread's launches
  uint64_t registry_seen = 0;
  int lock_holder = -1;                     // core that holds ticket_lock_mix
  Watch watch;
  bool repeats = false;                     // the launch is run again, to compare: nothing is reported
  std::vector<Reported> reported;                   // of this launch
  std::string left_out;                     // the first copy of this launch that was wrong and not done
  std::shared_ptr<void> checker_state;

 private:
  static void runner(void* self);
  void run_cores();
  Core* next_here(Fiber* self);
  void run_core(Core* core);
  void leave(Core* core);
  bool start_cluster();
  void fill_ready(uint64_t cores);
  uint64_t expected() const;
  void release(uint64_t cores);
  void release_groups();
  void continue_with(int next, Core* mine);
  Fiber* free_fiber();
  void forget_fibers();
  [[noreturn]] void deadlock();
  void count_lane();
  void count_reported();

  void push(int core) { ready_[tail_++ % kMaxCores] = static_cast<uint8_t>(core); }
  int pop() { return ready_[head_++ % kMaxCores]; }
  bool none_ready() const { return head_ == tail_; }

  Launch* launch_ = nullptr;
  Context host_;                            // the thread's own stack, while cores run
  SignalStack signal_stack_;
  Stacks stacks_;
  std::vector<Fiber*> free_;                // without a core in the middle of a kernel
  int fibers_used_ = 0;
  int cluster_ = -1, cores_per_group_ = 1;
  uint32_t epoch_ = 0;
  uint64_t live_ = 0, finished_ = 0, waiting_ = 0, waiting_all_ = 0;  // bit per core
  uint8_t ready_[kMaxCores];
  unsigned head_ = 0, tail_ = 0;
  char* sm_ = nullptr;
  Core cores_[kMaxCores];
};

// This thread's worker.
Worker& this_worker();

// A builtin's view of the calling kernel.
struct Caller {
  char* frame;      // the stack pointer, near enough: everything of the kernel's lies above
  const void* pc;
};
#define XPU_SIM_CALLER \
  xpu_sim::rt::Caller { static_cast<char*>(__builtin_frame_address(0)), __builtin_return_address(0) }

[[noreturn]] void outside_of_kernel(Site site);
[[gnu::cold]] void called_often(Core* core, Site site);
void fence(uint32_t mask, Site site, Caller caller);

// Has the compiler put a fence before this copy or barrier?
inline bool fenced(const Core& core, Site site) {
  const Profile profile = core.launch->options->profile;
  return __builtin_expect(profile == Profile::as_built ? site.fenced : profile == Profile::production, 0);
}

inline Core* enter(Site site, Caller caller) {
  Core* const core = current();
  if (__builtin_expect(!core->worker, 0)) outside_of_kernel(site);
  core->last = site;
  core->last_pc = caller.pc;
  if (caller.frame < core->lm_low) {
    core->lm_low = caller.frame;
    core->lm_at = site;
  }
  if (__builtin_expect(++core->calls > kCallsBeforeGivingWay, 0)) called_often(core, site);
  return core;
}

}  // namespace xpu_sim::rt
