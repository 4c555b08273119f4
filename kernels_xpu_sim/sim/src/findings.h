// The lists of findings: the process's, and each launch's own.
#pragma once

#include <vector>

#include "xpu_sim/finding.h"

namespace xpu_sim::rt {

// One entry per distinct place in each list: a repetition is counted.
void keep(const Finding& finding, std::vector<Finding>* of_launch);
// The same was seen `count` times more.
void count_again(const Finding& finding, long count, std::vector<Finding>* of_launch);
// This thread's launch has ended.
void launch_found(std::vector<Finding> findings);
// How often keep() was called.
uint64_t findings_made();

}  // namespace xpu_sim::rt
