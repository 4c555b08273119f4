// The list of findings.
#pragma once

#include "xpu_sim/finding.h"

namespace xpu_sim::rt {

// One entry per distinct place: a repetition is counted.
void keep(Finding finding);
// How often keep() was called.
uint64_t findings_made();

}  // namespace xpu_sim::rt
