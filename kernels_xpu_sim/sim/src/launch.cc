#include "xpu_sim/launch.h"

#include <cstring>
#include <utility>

#include "checker.h"
#include "findings.h"
#include "memory_image.h"
#include "random.h"
#include "report.h"
#include "thread_pool.h"
#include "trace.h"
#include "trap.h"
#include "worker.h"

namespace xpu_sim::rt {

Checker* checker = nullptr;

namespace {

thread_local bool failed = false;  // a launch, since take_failed_launch

constexpr int kMostWorkers = 32;  // half of the threads that may launch at all (stacks.cc)

// The GM of the launch: what is registered, and what the options add.
const GmTable* gm_of(const Options& options, Worker* worker) {
  if (worker->registry_seen != registry_generation()) worker->registry_seen = copy_registry(&worker->registry);
  if (options.gm_count == 0) return &worker->registry;
  GmTable& all = worker->launch_gm;
  all = worker->registry;
  for (size_t i = 0; i < options.gm_count; ++i) {
    const GmSpan& given = options.gm[i];
    Span span;
    span.begin = reinterpret_cast<uintptr_t>(given.data);
    span.end = span.begin + given.bytes;
    span.name = given.name;
    span.element = given.element ? given.element : 1;
    span.read_only = given.access == GmAccess::read_only;
    all.add(span);
  }
  return &all;
}

std::string what_is_wrong(int clusters, int cores, const Options& options) {
  if (clusters < 1 || clusters > kMaxClusters) return text("expected 1 to %d clusters, got %d", kMaxClusters, clusters);
  if (cores < 1 || cores > kMaxCores) return text("expected 1 to %d cores, got %d", kMaxCores, cores);
  if (options.workers < 1 || options.workers > kMostWorkers) {
    return text("expected 1 to %d workers, got %d", kMostWorkers, options.workers);
  }
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
                  text("byte %lld of %s, which has %zu, was written by a store", d.offset, d.name.c_str(), d.bytes),
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
