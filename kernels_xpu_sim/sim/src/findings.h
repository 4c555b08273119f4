// The list of findings.
#pragma once

#include "xpu_sim/finding.h"

namespace xpu_sim::rt {

// One entry per distinct place: a repetition is counted.
void keep(Finding finding);

}  // namespace xpu_sim::rt
