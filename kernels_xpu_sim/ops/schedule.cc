#include "ops.h"

#include "../kernels/schedule_slots.xpu"
#include "../kernels/set_stop_sequences.xpu"

namespace specdec::xpu {

void schedule_slots(const ScheduleSlotsArgs& a, const LaunchOptions& options) {
  launch_items(options, a.B, 1, schedule_slots_kernel, a);
}

void set_stop_sequences(const SetStopSequencesArgs& a, const LaunchOptions& options) {
  launch_items(options, a.M, 1, set_stop_sequences_kernel, a);
}

}  // namespace specdec::xpu
