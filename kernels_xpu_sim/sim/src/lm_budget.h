// How much LM a core may use.
#pragma once

#include <cstddef>

namespace xpu_sim::rt {

struct Core;

// The core has returned, and has used so many bytes, group-shared memory among them.
void check_lm(const Core& core, size_t used);

}  // namespace xpu_sim::rt
