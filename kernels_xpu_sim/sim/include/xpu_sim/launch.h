// Launching kernels.
#pragma once

#include <tuple>
#include <utility>

#include "xpu_sim/options.h"

namespace xpu_sim {

enum Status : int {
  ok = 0,
  refused = 1,  // nothing ran: the launch itself is wrong
  ended = 2     // a trap, a fault or the watchdog ended it early; GM holds what had been written
};

namespace detail {

struct Call {
  const void* kernel;
  void (*enter)(const void* frame);  // on a core: the kernel, with its arguments from the frame
  const void* frame;
};

int run(const Call& call, int clusters, int cores, const Options& options);
void begin_kernel();
void end_kernel();

template <class... P>
struct Frame {
  void (*kernel)(P...);
  std::tuple<P...> args;

  static void enter(const void* frame) {
    const Frame& self = *static_cast<const Frame*>(frame);
    call(self, std::index_sequence_for<P...>{});
  }

 private:
  // The arguments are copied first: from begin_kernel to end_kernel every access is the kernel's and is checked.
  template <size_t... I>
  static inline __attribute__((always_inline)) void call(const Frame& self, std::index_sequence<I...>) {
    start(self.kernel, std::get<I>(self.args)...);
  }
  static inline __attribute__((always_inline)) void start(void (*kernel)(P...), P... args) {
    begin_kernel();
    kernel(args...);
    end_kernel();
  }
};

template <class... P>
struct Launcher {
  void (*kernel)(P...);
  int clusters, cores;
  Options options;

  // Runs the kernel to its end. Status; what went wrong is in take_findings().
  int operator()(P... args) const {
    const Frame<P...> frame{kernel, std::tuple<P...>(args...)};
    return run({reinterpret_cast<const void*>(kernel), &Frame<P...>::enter, &frame}, clusters, cores, options);
  }
};

}  // namespace detail

// Whether a launch of this thread's was refused or ended early since the last call.
bool take_failed_launch();

// launch(kernel<float>, 12, 64)(x, y, n): `clusters` 1..255 logical clusters of `cores` 1..64.
template <class... P>
detail::Launcher<P...> launch(void (*kernel)(P...), int clusters, int cores, const Options& options = defaults()) {
  return {kernel, clusters, cores, options};
}

}  // namespace xpu_sim
