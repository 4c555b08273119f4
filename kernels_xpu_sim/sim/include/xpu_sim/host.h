// The emulator for host programs: launch kernels, give them memory, ask what was found and counted.
#pragma once

#include "xpu_sim/finding.h"
#include "xpu_sim/gm.h"
#include "xpu_sim/launch.h"
#include "xpu_sim/options.h"
#include "xpu_sim/report.h"
#include "xpu_sim/trace.h"
