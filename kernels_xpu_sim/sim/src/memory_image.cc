#include "memory_image.h"

#include "raw_memory.h"
#include "worker.h"

extern "C" {
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void*, size_t);
}

namespace xpu_sim::rt {

void poison_lm(Core* core) {
  // Called on the stack that it fills, hence the distance to what is in use.
  constexpr size_t kInUse = 512;
  char* const top = static_cast<char*>(__builtin_frame_address(0)) - kInUse;
  raw_fill(top - core->launch->lm_limit, static_cast<unsigned char>(core->launch->options->poison),
           core->launch->lm_limit);
}

void poison_sm(Worker& worker) {
  const Options& options = *worker.launch()->options;
  for (const Symbol* object : worker.launch()->kernel->sm_objects) {
    raw_fill(worker.sm() + object->begin, static_cast<unsigned char>(options.poison), object->bytes);
  }
}

void forget_stacks(Stacks* stacks) {
  // AddressSanitizer would take the frames that were left for live ones.
  if (__asan_unpoison_memory_region) {
    for (int i = 0; i <= kFaultStack; ++i) {
      const Fiber& f = *stacks->fiber(i);
      __asan_unpoison_memory_region(f.low, static_cast<size_t>(f.high - f.low));
    }
  }
}

}  // namespace xpu_sim::rt
