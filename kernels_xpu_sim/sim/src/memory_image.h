// The contents of LM and SM before a kernel uses them.
#pragma once

namespace xpu_sim::rt {

struct Core;
class Stacks;
class Worker;

// Fill with the poison of the options what the core that is about to start, or the cluster, has not used.
void poison_lm(Core* core);
void poison_sm(Worker& worker);
// The stacks' contents will not be returned to.
void forget_stacks(Stacks* stacks);

}  // namespace xpu_sim::rt
