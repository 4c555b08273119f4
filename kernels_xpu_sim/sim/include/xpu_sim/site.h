// The source location of a call. As a default argument it costs two registers, needs no debug information, survives
// stripping, and names the kernel's line even inside inlined helpers.
#pragma once

#ifndef XPU_SIM_PRODUCTION
#define XPU_SIM_PRODUCTION 0
#endif

namespace xpu_sim {

struct Site {
  const char* file = nullptr;
  int line = 0;
  int fenced = 0;  // 1: compiled with --profile production: the compiler puts fences there

  static constexpr Site here(const char* f = __builtin_FILE(), int l = __builtin_LINE(), int p = XPU_SIM_PRODUCTION) {
    return {f, l, p};
  }
};

}  // namespace xpu_sim

// The last parameter of every builtin that can be at fault.
#define XPU_SIM_SITE ::xpu_sim::Site xpu_sim_site = ::xpu_sim::Site::here()
