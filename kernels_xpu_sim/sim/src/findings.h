// The list of findings.
#pragma once

#include "checks.h"
#include "xpu_sim/finding.h"

namespace xpu_sim::rt {

// One entry per distinct place: a repetition is counted.
void keep(Finding finding);
// The same was seen `count` times more.
void count_again(Check check, const std::string& kernel, const Location& at, long count);
// How often keep() was called.
uint64_t findings_made();

}  // namespace xpu_sim::rt
