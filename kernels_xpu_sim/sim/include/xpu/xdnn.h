// The framework of XDNN-style operators: a context with the device, scratch memory, and vectors on host and device.
// Only operators that wrappers call are included. The checks of arguments are in
// xpu/refactor/impl_public/wrapper_check.h.
#pragma once

// Wrappers rely on the vendor's headers for these.
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "xpu/runtime.h"
#include "xpu_sim/kernel/convert.h"
#include "xpu_sim/kernel/types.h"

// The device's own integers, to which wrappers cast pointers. Its int64_t is `long long`; here it is the host's, so
// that the linker finds kernels.
namespace xpu3 {
using ::int64_t;
using ::uint64_t;
}  // namespace xpu3

namespace baidu::xpu::api {

using ::bfloat16;
using ::float16;

enum Error_t : int { SUCCESS = 0, INVALID_PARAM = 1, RUNTIME_ERROR = 2, NO_ENOUGH_WORKSPACE = 3, NOT_IMPLEMENT = 4 };
enum DeviceType { kCPU = 0, kXPU1 = 1, kXPU2 = 2, kXPU3 = 3 };

class Device {
 public:
  Device(DeviceType type = kXPU3) : type_(type) {}
  DeviceType type() const { return type_; }

 private:
  DeviceType type_;
};

// On kCPU every pointer is one of the host's, otherwise one of GM.
class Context {
 public:
  Context(Device dev = kXPU3) : dev_(dev) {}
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Device& dev() const { return dev_; }
  int ncluster() const { return ncluster_; }
  void set_ncluster(int n) { ncluster_ = n; }
  void set_stream(XPUStream stream) { xpu_stream = stream; }
  // Other than 0: wrappers write their calls to the standard error.
  void set_debug_level(int level) { debug_level = level; }

  XPUStream xpu_stream = nullptr;
  int debug_level = 0;
  std::string call;  // what WRAPPER_DUMP_... has gathered

 private:
  Device dev_;
  int ncluster_ = 12;
};

Context* create_context();
void destroy_context(Context* ctx);

// A scope's scratch memory, freed at its end: of the host on kCPU, else GM.
class ctx_guard {
 public:
  explicit ctx_guard(Context* ctx) : ctx_(ctx) {}
  ~ctx_guard();
  ctx_guard(const ctx_guard&) = delete;
  ctx_guard& operator=(const ctx_guard&) = delete;

  // nullptr: there is not enough.
  template <class T>
  T* alloc(int64_t count) {
    return static_cast<T*>(bytes(count * static_cast<int64_t>(sizeof(T))));
  }
  template <class T>
  T* alloc_l3(int64_t count) {
    return alloc<T>(count);
  }
  template <class T>
  T* alloc_l3_or_gm(int64_t count) {
    return alloc<T>(count);
  }
  Context* context() const { return ctx_; }

 private:
  void* bytes(int64_t n);
  Context* ctx_;
  std::vector<void*> blocks_;
};

int do_host2device(Context* ctx, const void* host, void* device, int64_t bytes, XPU_SIM_SITE);
int do_device2host(Context* ctx, const void* device, void* host, int64_t bytes, XPU_SIM_SITE);

// `len` elements on the host, and their copy on the device where there is one.
template <class T>
struct VectorParam {
  T* cpu;
  int64_t len;
  T* xpu;

  // The same with a copy on the context's device that lives as long as the guard. On kCPU there is none.
  VectorParam to_xpu(ctx_guard& guard) const {
    if (xpu || !cpu || len == 0 || guard.context()->dev().type() == kCPU) return *this;
    T* const copy = guard.alloc<T>(len);
    const bool copied = copy && do_host2device(guard.context(), cpu, copy, len * int64_t{sizeof(T)}) == SUCCESS;
    return {cpu, len, copied ? copy : nullptr};
  }
};

}  // namespace baidu::xpu::api

// The type of a kernel's index. The device's `long` has 4 bytes, so that wrappers cast; here it has the host's 8.
template <class T>
struct XPUIndexType {
  using type = T;
};

namespace xpu_sim::wrapper {
// INVALID_PARAM unless `count` elements are there: in GM, or, on kCPU, anywhere. It says what is wrong; `where` is the
// wrapper's line.
int check_memory(const baidu::xpu::api::Context* ctx, const void* p, int64_t count, size_t element, const char* name,
                 Site where);
}  // namespace xpu_sim::wrapper

namespace baidu::xpu::api {

using ::XPUIndexType;

// `n` elements of x as another type, also in place. Floats become integers toward zero; to float16 and bfloat16 they
// are rounded to the nearest, ties to even.
template <class X, class Y>
int cast(Context* ctx, const X* x, Y* y, int64_t n, XPU_SIM_SITE) {
  int error = xpu_sim::wrapper::check_memory(ctx, x, n, sizeof(X), "x", xpu_sim_site);
  if (!error) error = xpu_sim::wrapper::check_memory(ctx, y, n, sizeof(Y), "y", xpu_sim_site);
  if (error) return error;
  const auto one = [x, y](int64_t i) {
    if constexpr (std::is_arithmetic_v<Y>) {
      y[i] = xpu_sim::detail::converted<Y>(x[i]);
    } else {
      y[i] = static_cast<Y>(static_cast<float>(x[i]));
    }
  };
  if constexpr (sizeof(Y) > sizeof(X)) {
    for (int64_t i = n - 1; i >= 0; --i) one(i);
  } else {
    for (int64_t i = 0; i < n; ++i) one(i);
  }
  return SUCCESS;
}

// x of the range [-absmax, absmax] as an integer of [-MAX, MAX], to the nearest, halves away from zero.
template <class T, int MAX>
T __fp32_to_intx(float x, float absmax) {
  const float scaled = absmax > 0 ? x / absmax * MAX : 0.0f;
  return static_cast<T>(std::llround(std::fmin(std::fmax(scaled, -static_cast<float>(MAX)), static_cast<float>(MAX))));
}

// `n` elements of the value.
template <class T>
int constant(Context* ctx, T* x, int64_t n, std::common_type_t<T> value, XPU_SIM_SITE) {
  const int error = xpu_sim::wrapper::check_memory(ctx, x, n, sizeof(T), "x", xpu_sim_site);
  for (int64_t i = 0; i < n && !error; ++i) x[i] = value;
  return error;
}

}  // namespace baidu::xpu::api
