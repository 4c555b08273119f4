// Replaces kernel<<<clusters, cores, stream>>>(args) in host code:
// XPU_SIM_CHEVRON("kernel", (kernel), clusters, cores, stream)(args), an int that is 0 when the launch went well.
#pragma once

#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>

#include "xpu_sim/launch.h"
#include "xpu_sim/site.h"

namespace xpu_sim {

namespace detail {

// A finding if the stream was destroyed.
void check_stream(const void* stream, const char* kernel, Site site);

struct AsPointer {};

// Of a kernel whose template arguments are all given. The first argument makes the call depend on a template, so that
// an overload set that names no single kernel is no error but no candidate.
template <class... P>
auto pointer_of(AsPointer, void (*kernel)(P...)) -> void (*)(P...) {
  return kernel;
}

// Of a kernel whose remaining template arguments follow from the call, as in k<float><<<1, 64>>>(x).
template <class Invoke>
struct DeducedLauncher {
  Invoke invoke;
  int clusters, cores;
  Options options;

  template <class... A>
  int operator()(A... args) const {
    struct Frame {
      const Invoke& invoke;
      std::tuple<A...> args;

      static void enter(const void* p) {
        const Frame& self = *static_cast<const Frame*>(p);
        std::apply([&self](A... a) { start(self.invoke, a...); }, self.args);
      }
      static void start(Invoke invoke, A... a) {
        begin_kernel();
        invoke(a...);
        end_kernel();
      }
    };
    const Frame frame{invoke, std::tuple<A...>(args...)};
    return run({reinterpret_cast<const void*>(&Frame::enter), &Frame::enter, &frame}, clusters, cores, options);
  }
};

}  // namespace detail

template <class Pointer, class Invoke, class Stream = std::nullptr_t>
auto chevron(const char* name, Site site, Pointer pointer, Invoke invoke, long long clusters, long long cores,
             Stream stream = nullptr, ...) {
  Options options = defaults();
  if constexpr (std::is_pointer_v<Stream>) detail::check_stream(stream, name, site);
  // As an int without overflow: neither end may be launched.
  const auto fit = [](long long x) { return static_cast<int>(x<-1 ? -1 : x>(1 << 20) ? 1 << 20 : x); };
  const int c = fit(clusters), n = fit(cores);
  if constexpr (std::is_invocable_v<Pointer, detail::AsPointer>) {
    return launch(pointer(detail::AsPointer{}), c, n, options);
  } else {
    options.name = name;
    return detail::DeducedLauncher<Invoke>{invoke, c, n, options};
  }
}

}  // namespace xpu_sim

#define XPU_SIM_CHEVRON(NAME, KERNEL, ...)                                                                 \
  ::xpu_sim::chevron(NAME, ::xpu_sim::Site::here(),                                                        \
                     [=](auto xpu_sim_as) -> decltype(::xpu_sim::detail::pointer_of(xpu_sim_as, KERNEL)) { \
    return ::xpu_sim::detail::pointer_of(xpu_sim_as, KERNEL);                                              \
  }, [=](auto... xpu_sim_args) { KERNEL(xpu_sim_args...); }, __VA_ARGS__)
