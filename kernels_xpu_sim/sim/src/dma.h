// The DMA engine's side that the scheduler sees.
#pragma once

namespace xpu_sim::rt {

struct Core;

// The core has returned: what it has issued takes effect.
void finish_copies(Core* core);

}  // namespace xpu_sim::rt
