#include "worker.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "checker.h"
#include "dma.h"
#include "findings.h"
#include "lm_budget.h"
#include "memory_image.h"
#include "random.h"
#include "trace.h"
#include "trap.h"

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
  gm_hint = nullptr;
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
  count_told();
}

void Worker::count_told() {
  if (repeats) told.clear();
  for (const Told& t : told) {
    if (t.count > 1) count_again(t.finding, t.count - 1, &launch_->findings);
  }
  told.clear();
}

// A fiber runs cores to their ends, one after the other on one stack; only a core that must wait keeps its stack, and
// the others go on on another. A kernel that never waits thus needs no switch per core.
void Worker::runner(void* self) {
  enter_context();
  static_cast<Worker*>(self)->run_cores();
}

void Worker::run_cores() {
  // A worker has no other way to know on whose stack it is: the first core tells.
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
  finish_copies(core);
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
  core->calls = 0;
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

// After a launch that ended early: whatever the stacks hold will not continue.
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

}  // namespace xpu_sim::rt
