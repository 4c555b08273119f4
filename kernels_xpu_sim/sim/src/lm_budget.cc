#include "lm_budget.h"

#include <algorithm>

#include "trap.h"
#include "worker.h"
#include "xpu_sim/kernel/qualifiers.h"

namespace xpu_sim::rt {

namespace {

void complain(const Core& core, const std::string& message, const char* flag = nullptr) {
  if (core.launch->lm_reported.exchange(true)) return;
  Finding f = core.lm_pc ? finding_at(Check::lm_budget, core, core.lm_pc, message)
                         : finding_at(Check::lm_budget, core, core.lm_site, message);
  report(Check::lm_budget, core, flag ? depending(std::move(f), flag) : std::move(f));
}

// Objects of a loop, or of calls one after the other, may have had the same memory.
size_t group_shared_bytes(const Core& core) {
  auto ranges = core.group_shared;
  std::sort(ranges.begin(), ranges.end());
  size_t bytes = 0;
  char* end = nullptr;
  for (const auto& [first, last] : ranges) {
    if (last <= end) continue;
    bytes += static_cast<size_t>(last - std::max(first, end));
    end = last;
  }
  return bytes;
}

}  // namespace

void check_lm(const Core& core, size_t used) {
  const size_t all = core.launch->lm_limit;
  if (used > all) {
    return complain(core, text("%zu bytes of LM in use, call stack included; a core has %zu", used, all));
  }
  const size_t shared = group_shared_bytes(core), stack = used - shared;
  const size_t most = static_cast<size_t>(core.launch->options->model.gsm_stack_bytes);
  if (stack <= most && shared <= all - most) return;
  complain(core,
           text("%zu bytes of group-shared memory and %zu of other LM in use, call stack included; with 16 cores "
                "there are %zu and %zu",
                shared, stack, all - most, most),
           "gsm_stack_bytes");
}

}  // namespace xpu_sim::rt

namespace xpu_sim::detail {

using namespace xpu_sim::rt;

void group_shared_was_used(char* object, size_t bytes) {
  Core* const core = current();
  if (!core->worker || core->launch->options->model.gsm_stack_bytes == 0 || core->launch->cores != kGroups) return;
  if (bytes > kGroupLmBytes) return;  // of a size that the compiler does not know
  core->lm_low = std::min(core->lm_low, object);
  const std::pair<char*, char*> range(object, object + bytes);
  auto& known = core->group_shared;
  if (std::find(known.begin(), known.end(), range) == known.end()) known.push_back(range);
}

}  // namespace xpu_sim::detail
