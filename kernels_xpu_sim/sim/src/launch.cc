// Launches: checked, then run by workers, whose cores take turns.
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "checker.h"
#include "dma.h"
#include "forks.h"
#include "lm.h"
#include "random.h"
#include "report.h"
#include "trace.h"
#include "worker.h"
#include "xpu_sim/launch.h"

namespace xpu_sim::rt {

Worker& this_worker() {
  static thread_local std::unique_ptr<Worker> worker;
  if (!worker) worker = std::make_unique<Worker>();
  return *worker;
}

Worker::Worker() {
  for (int i = 0; i < kMaxCores; ++i) {
    cores_[i].id = i;
    cores_[i].worker = this;
  }
  free_.reserve(kMaxCores);
  catch_faults();
}

void Worker::run(Launch* launch) {
  launch_ = launch;
  cores_per_group_ = (launch->cores + kGroups - 1) / kGroups;
  counters = Counters();
  plain = !checker && !tracing() && launch->options->dma == DmaPolicy::eager;
  const Profile profile = launch->options->profile;
  lane = Lane();
  lane.as_built = profile == Profile::as_built;
  lane.production = profile == Profile::production;
  sm_ = launch->kernel->module ? launch->kernel->module->tls_block() : nullptr;
  head_ = tail_ = 0;
  live_ = 0;
  left_out.clear();
  const WatchdogScope watched(&watch, launch->options->watchdog_seconds);
  if (checker) checker->launch_begins(*this);
  if (!start_cluster()) return;
  switch_context(&host_, &free_fiber()->context);
  if (launch->ended.load(std::memory_order_relaxed)) forget_fibers();
  if (checker) checker->launch_ends(*this);
  count_lane();
  count_reported();
}

// What kernels have done without a call.
void Worker::count_lane() {
  counters.fences += lane.fences;
  for (const Direction d : {gm2lm, lm2gm}) {
    const bool out = to_gm(d);
    uint64_t lines = lane.second_lines[out];
    for (int i = 0; i < 5; ++i) {
      counters.dma_ops[d] += lane.small[d][i];
      counters.dma_bytes[d] += lane.small[d][i] << i;
      lines += lane.small[d][i];
    }
    counters.gm_lines += lines;
    if (out) counters.partial_lines += lines;
  }
}

void Worker::count_reported() {
  if (repeats) reported.clear();
  for (const Reported& t : reported) {
    if (t.count > 1) count_again(t.finding, t.count - 1, &launch_->findings);
  }
  reported.clear();
}

// A fiber runs cores to their ends, one after the other on one stack; only a core that must wait keeps its stack, and
// the others go on on another. A kernel that never waits thus needs no switch per core.
void Worker::runner(void* self) {
  enter_context();
  static_cast<Worker*>(self)->run_cores();
}

void Worker::run_cores() {
  // A worker learns on whose stack it is from the first core.
  Fiber* const self = stacks_.owner(__builtin_frame_address(0));
  for (;;) {
    Core* const core = next_here(self);
    core->fiber = self;
    run_core(core);
    leave(core);
    core->fiber = nullptr;
  }
}

// The next core to start on this stack. Meanwhile others may continue on theirs.
Core* Worker::next_here(Fiber* self) {
  for (;;) {
    if (self->next) return std::exchange(self->next, nullptr);
    if (none_ready() && live_ != 0) deadlock();
    if (none_ready() && !start_cluster()) {
      free_.push_back(self);
      switch_context(&self->context, &host_);
      continue;
    }
    Core& core = cores_[pop()];
    if (!core.fiber) return &core;
    free_.push_back(self);
    switch_context(&self->context, &core.fiber->context);
  }
}

void Worker::run_core(Core* core) {
  core->launch = launch_;
  core->cores = launch_->cores;
  core->clusters = launch_->clusters;
  core->lane = plain ? &lane : nullptr;
  core->cluster = cluster_;
  core->last = Site();
  core->calls = 0;
  core->dma_bytes = core->accesses = 0;
  core->linked = nullptr;
  core->group_shared.clear();
  *owner_slot(core->fiber->low) = core;
  if (tracing()) trace_core_begins(*core);
  if (launch_->options->poison >= 0) poison_lm(core);
  try {
    launch_->call.enter(launch_->call.frame);
  } catch (...) {
    exception_trap(*core);
  }
  if (!core->dma.pending.empty()) finish_copies(core);
}

void Worker::leave(Core* core) {
  const size_t lm = static_cast<size_t>(core->lm_top - core->lm_low);
  if (lm > counters.lm_high) counters.lm_high = lm;
  if (__builtin_expect(lm > launch_->lm_limit || !core->group_shared.empty(), 0) &&
      (!checker || checker->frames_are_true())) {
    check_lm(*core, lm);
  }
  if (core->dma_bytes > counters.max_core_dma_bytes) counters.max_core_dma_bytes = core->dma_bytes;
  if (core->accesses > counters.max_core_accesses) counters.max_core_accesses = core->accesses;
  if (tracing()) trace_core_ends(*core);
  const uint64_t bit = uint64_t{1} << core->id;
  finished_ |= bit;
  live_ &= ~bit;
  if (!waiting_) return;
  if (waiting_all_ == expected()) {
    release(waiting_all_);
  } else if (waiting_ != waiting_all_) {
    release_groups();
  }
}

// The cores that a barrier waits for.
uint64_t Worker::expected() const { return launch_->options->model.exit_counts_as_arrival ? live_ : live_ | finished_; }

bool Worker::start_cluster() {
  if (launch_->ended.load(std::memory_order_relaxed)) return false;
  const int n = launch_->next_cluster.fetch_add(1, std::memory_order_relaxed);
  if (n >= launch_->clusters) return false;
  cluster_ = launch_->cluster_order.empty() ? n : launch_->cluster_order[static_cast<size_t>(n)];
  epoch_ = 0;
  finished_ = waiting_ = waiting_all_ = 0;
  lock_holder = -1;
  const uint64_t all = ~uint64_t{0} >> (64 - launch_->cores);
  live_ = all;
  if (launch_->options->poison >= 0) poison_sm(*this);
  if (checker) checker->cluster_begins(*this);
  fill_ready(all);
  return true;
}

// Makes the cores ready, in natural order or, with a seed, in one drawn for this cluster and epoch.
void Worker::fill_ready(uint64_t cores) {
  if (launch_->options->seed == 0) {
    for (uint64_t rest = cores; rest; rest &= rest - 1) push(__builtin_ctzll(rest));
    return;
  }
  uint8_t order[kMaxCores];
  int n = 0;
  for (uint64_t rest = cores; rest; rest &= rest - 1) order[n++] = static_cast<uint8_t>(__builtin_ctzll(rest));
  Random random(launch_->options->seed, Random::core_order, static_cast<uint64_t>(cluster_) << 32 | epoch_);
  for (int i = n; i > 1; --i) std::swap(order[i - 1], order[random.below(static_cast<uint32_t>(i))]);
  for (int i = 0; i < n; ++i) push(order[i]);
}

void Worker::barrier(uint32_t groups, Site site) {
  Core* const core = current();
  core->wait_groups = groups;
  core->last = site;
  if (checker) checker->core_pauses(*core);
  if (tracing()) trace_arrival(*core);
  const uint64_t bit = uint64_t{1} << core->id;
  waiting_ |= bit;
  if (groups == (1u << kGroups) - 1) {
    waiting_all_ |= bit;
    if (waiting_all_ == expected()) release(waiting_all_);
  } else {
    release_groups();
  }
  if (none_ready()) deadlock();
  continue_with(pop(), core);
}

void Worker::release(uint64_t cores) {
  ++counters.barriers;
  if (checker) checker->barrier_completes(*this, cores);
  if (tracing()) trace_release(*this, cores);
  waiting_ &= ~cores;
  waiting_all_ &= ~cores;
  ++epoch_;
  fill_ready(cores);
}

// Releases those whose groups have all arrived. Few kernels use partial barriers: this may take its time.
void Worker::release_groups() {
  for (uint64_t rest = waiting_ & ~waiting_all_; rest; rest &= rest - 1) {
    const uint32_t groups = cores_[__builtin_ctzll(rest)].wait_groups;
    uint64_t needed = 0, arrived = 0;
    for (uint64_t all = expected(); all; all &= all - 1) {
      const int i = __builtin_ctzll(all);
      if (!(groups >> group_of(i) & 1)) continue;
      const uint64_t bit = uint64_t{1} << i;
      needed |= bit;
      if ((waiting_ & bit) && cores_[i].wait_groups == groups) arrived |= bit;
    }
    if (needed == arrived && needed != 0) {
      release(needed);
      return release_groups();
    }
  }
}

void Worker::give_way() {
  Core* const core = current();
  if (checker) checker->core_pauses(*core);
  push(core->id);
  continue_with(pop(), core);
}

// Leaves this fiber in the middle of its core, for that core's turn.
void Worker::continue_with(int next, Core* mine) {
  Core& core = cores_[next];
  if (&core == mine) return;
  Fiber* to = core.fiber;
  if (!to) {
    to = free_fiber();
    to->next = &core;
  }
  switch_context(&mine->fiber->context, &to->context);
}

Fiber* Worker::free_fiber() {
  if (!free_.empty()) {
    Fiber* const f = free_.back();
    free_.pop_back();
    return f;
  }
  Fiber* const f = stacks_.fiber(fibers_used_++);
  f->next = nullptr;
  prepare_context(&f->context, f->low, static_cast<size_t>(f->high - f->low), &Worker::runner, this);
  return f;
}

void Worker::end_launch() {
  launch_->ended.store(true, std::memory_order_relaxed);
  abandon_context(&host_);
}

// After a launch that ended early: discard the stacks.
void Worker::forget_fibers() {
  free_.clear();
  fibers_used_ = 0;
  for (Core& core : cores_) {
    core.fiber = nullptr;
    core.dma.clear();
  }
  forget_stacks(&stacks_);
}

void Worker::deadlock() { deadlock_trap(*this); }

namespace {

// Threads are kept between launches and never joined: they sleep, and the process ends them. A launch does not wait for
// one that has not come when all clusters are taken: on a busy machine that can take many times as long as the launch.
class ThreadPool {
 public:
  void run(int workers, Launch* launch, Counters* total) {
    std::unique_lock<std::mutex> lock(mutex_);
    idle_.wait(lock, [this] { return launch_ == nullptr; });  // another thread's launch
    while (threads_ < workers - 1 && add_thread()) {
    }
    launch_ = launch;
    total_ = total;
    wanted_ = std::min(workers - 1, threads_);
    ++ticket_;
    work_.notify_all();
    lock.unlock();
    Worker& mine = this_worker();
    mine.run(launch);
    lock.lock();
    merge(total, mine.counters);
    wanted_ = 0;
    done_.wait(lock, [this] { return busy_ == 0; });
    launch_ = nullptr;
    idle_.notify_one();
  }

 private:
  // False: the system has no more. The launch is then shared by fewer.
  bool add_thread() {
    try {
      std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {
      return false;
    }
    ++threads_;
    return true;
  }

  // nullptr: as many threads launch as can. The others then do this one's clusters.
  static Worker* worker_if_any() {
    try {
      return &this_worker();
    } catch (const std::exception&) {
      return nullptr;
    }
  }

  void serve() {
    uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      work_.wait(lock, [&] { return ticket_ != seen && wanted_ > 0; });
      seen = ticket_;
      --wanted_;
      ++busy_;
      Launch* const launch = launch_;
      lock.unlock();
      Worker* const mine = worker_if_any();
      if (mine) mine->run(launch);
      lock.lock();
      if (mine) merge(total_, mine->counters);
      if (--busy_ == 0) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable work_, done_, idle_;
  Launch* launch_ = nullptr;
  Counters* total_ = nullptr;
  int threads_ = 0, wanted_ = 0, busy_ = 0;
  uint64_t ticket_ = 0;
};

}  // namespace

void run_on(int workers, Launch* launch, Counters* counters) {
  static ThreadPool* pool = nullptr;
  static unsigned generation = 0;
  ThreadPool* mine;
  {
    const std::lock_guard<std::mutex> lock(lock_of(Shared::pool));
    if (!pool || generation != fork_generation()) {
      pool = new ThreadPool;  // the parent's is left: its threads are not here
      generation = fork_generation();
    }
    mine = pool;
  }
  mine->run(workers, launch, counters);
}

Checker* checker = nullptr;

namespace {

thread_local bool failed = false;  // a launch, since take_failed_launch

constexpr int kMaxWorkers = 32;  // half of the threads that may launch at all (stacks.cc)

// The GM of the launch: what is registered, and what the options add.
const GmTable* gm_of(const Options& options, Worker* worker) {
  if (worker->registry_seen != registry_generation()) worker->registry_seen = copy_registry(&worker->registry);
  if (options.gm_count == 0) return &worker->registry;
  GmTable& all = worker->launch_gm;
  all = worker->registry;
  for (size_t i = 0; i < options.gm_count; ++i) all.add(span_of(options.gm[i]));
  return &all;
}

std::string what_is_wrong(int clusters, int cores, const Options& options) {
  if (clusters < 1 || clusters > kMaxClusters) return text("expected 1 to %d clusters, got %d", kMaxClusters, clusters);
  if (cores < 1 || cores > kMaxCores) return text("expected 1 to %d cores, got %d", kMaxCores, cores);
  if (options.workers < 1 || options.workers > kMaxWorkers) {
    return text("expected 1 to %d workers, got %d", kMaxWorkers, options.workers);
  }
  if (options.poison < -1 || options.poison > 255) return text("expected poison of -1 to 255, got %d", options.poison);
  const int stack = options.model.gsm_stack_bytes;
  if (stack < 0 || static_cast<size_t>(stack) > kGroupLmBytes) {
    return text("expected model.gsm_stack_bytes of 0 to %zu, got %d", kGroupLmBytes, stack);
  }
  if (current()->worker) return "a kernel cannot launch kernels";
  return "";
}

int refuse(Check check, const Options& options, const KernelInfo& kernel, const std::string& why) {
  std::vector<Finding> findings;
  report_launch(check, options, kernel.name, why, &findings);
  launch_found(std::move(findings));
  failed = true;
  return refused;
}

void shuffle_clusters(Launch* launch) {
  if (launch->options->seed == 0) return;
  std::vector<int>& order = launch->cluster_order;
  for (int i = 0; i < launch->clusters; ++i) order.push_back(i);
  Random random(launch->options->seed, Random::cluster_order, 0);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(static_cast<uint32_t>(i))]);
}

}  // namespace

}  // namespace xpu_sim::rt

namespace xpu_sim {

bool take_failed_launch() { return std::exchange(rt::failed, false); }

}  // namespace xpu_sim

namespace xpu_sim::detail {

using namespace xpu_sim::rt;

int run(const Call& call, int clusters, int cores, const Options& options) {
  Worker& worker = this_worker();
  const KernelInfo* const kernel = kernel_info(call.kernel, options.name, &worker.kernels);
  const std::string wrong = what_is_wrong(clusters, cores, options);
  if (!wrong.empty()) return refuse(Check::bad_launch, options, *kernel, wrong);
  if (kernel->sm_bytes > kSmBytes) {
    return refuse(Check::sm_budget, options, *kernel,
                  text("%zu bytes of SM declared; a cluster has %zu", kernel->sm_bytes, kSmBytes));
  }
  Launch launch;
  launch.call = call;
  launch.clusters = clusters;
  launch.cores = cores;
  launch.options = &options;
  launch.kernel = kernel;
  launch.gm = gm_of(options, &worker);
  launch.lm_limit = cores == kGroups ? kGroupLmBytes : kGroupLmBytes / 4;
  shuffle_clusters(&launch);
  if (tracing()) trace_launch_begins(&launch);
  Counters total;
  const bool alone = options.workers == 1 || clusters == 1 || (checker && !checker->many_workers());
  if (alone) {
    worker.run(&launch);
    total = worker.counters;
  } else {
    run_on(options.workers, &launch, &total);
  }
  if (checker) checker->launch_is_over(worker, launch);
  if (tracing()) trace_launch_ends(launch);
  total.sm_bytes = kernel->sm_bytes;
  record(*kernel, clusters, cores, total);
  for (const Damage& d : check_red_zones()) {
    report_launch(Check::gm_red_zone, options, kernel->name,
                  text("a store wrote byte %lld of %s, which has %zu", d.offset, d.name.c_str(), d.bytes),
                  &launch.findings);
  }
  launch_found(std::move(launch.findings));
  failed |= launch.ended.load();
  return launch.ended.load() ? ended : ok;
}

void begin_kernel() {
  Core* const core = current();
  // Above this are the caller's frame and the kernel's arguments; below, its LM.
  core->lm_top = core->lm_low = static_cast<char*>(__builtin_frame_address(0)) + 16;
  if (!checker) return;
  if (char* const lowest = checker->core_begins(*core)) fill_unused_stack(lowest);
}

void end_kernel() {
  if (checker) checker->core_ends(*current());
}

}  // namespace xpu_sim::detail
