// Findings, and the counters of launches: making, keeping and adding them up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <typeinfo>
#include <vector>

#include "checks.h"
#include "dwarf.h"
#include "modules.h"
#include "worker.h"
#include "xpu_sim/finding.h"
#include "xpu_sim/options.h"
#include "xpu_sim/report.h"
#include "xpu_sim/site.h"

namespace xpu_sim::rt {

// One entry per distinct place in each list: a repetition is counted.
void keep(const Finding& finding, std::vector<Finding>* of_launch);
// The same was seen `count` times more.
void count_again(const Finding& finding, long count, std::vector<Finding>* of_launch);
// This thread's launch has ended.
void launch_found(std::vector<Finding> findings);
// How often keep() was called.
uint64_t findings_made();

void record(const KernelInfo& kernel, int clusters, int cores, const Counters& counters);
// Adds the counters of another worker of the same launch.
void merge(Counters* into, const Counters& from);

// printf into a string.
[[gnu::format(printf, 1, 2)]] std::string text(const char* format, ...);

// A finding of the core's, with the object at `address`, if there is one. Details may be added before it is reported.
Finding finding_at(Check check, const Core& core, At at, std::string message, const void* address = nullptr);

// Another value of the model's flag would make it right. Gives the finding.
Finding depending(Finding finding, const char* flag);

// Records it, and ends the launch if its check or the options say so.
void report(Check check, const Core& core, Finding finding);
// nullptr: it is counted with the first.
Reported* first_time(Check check, Severity severity, const Core& core, At at);
// The same with what make() gives, unless this check has found something there in this launch: then it is counted.
template <class F>
void report_once(Check check, const Core& core, At at, F make, Severity severity = Severity::defect) {
  if (Reported* t = first_time(check, severity, core, at)) {
    const WatchdogHold making(&core.worker->watch);
    Finding f = make();
    t->finding = f;
    report(check, core, std::move(f));
  }
}
// Records it and ends the launch.
[[noreturn]] void trap(Finding finding);
// The same, unless the options ask to keep going: memory is sound, since what was wrong has not been done.
void trap_or_go_on(Finding finding);

// Adds space, object and offset of an address, as far as known.
// Of what ends `room` bytes after the address, or there, the object that lies before it.
void describe_end(Finding* f, const Core& core, const void* address, size_t room);
void describe(Finding* finding, const Core& core, const void* address);

// The scalar of a variable in LM or SM that holds the address, where the debug information has it; `pc`: in the running
// core's innermost function.
Scalar scalar_at(const Core& core, const void* address, const void* pc);

// A throw at the core's last call, or one that has been unwound: of code that is not the kernel's own.
[[noreturn]] void throw_trap(const Core& core, void* object, const std::type_info& type);
[[noreturn]] void exception_trap(const Core& core);
[[noreturn]] void deadlock_trap(Worker& worker);
[[noreturn]] void watchdog_trap(const Core& core, At at);
// "core 3 waits at k.xpu:12; cores 4-63 have returned": where the cores of the running cluster are.
std::string positions(Worker& worker);

// A finding that belongs to no core.
void report_launch(Check check, const Options& options, const std::string& kernel, std::string message,
                   std::vector<Finding>* of_launch);

}  // namespace xpu_sim::rt
