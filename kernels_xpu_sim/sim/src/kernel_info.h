// What is known of a kernel from its module.
#pragma once

#include <cstddef>
#include <string>

#include "modules.h"

namespace xpu_sim::rt {

struct KernelInfo {
  const void* address = nullptr;
  std::string name;                // "verify<float>"
  const Module* module = nullptr;  // nullptr: not in any file, such as code made at run time
  size_t sm_bytes = 0;             // of the SM objects it declares itself
};

// What a thread launched lately, by a few bits of the address: found without locking.
struct KernelCache {
  const KernelInfo* recent[256] = {};
};

// Found once per kernel and kept.
const KernelInfo* kernel_info(const void* kernel, const char* name, KernelCache* cache);

}  // namespace xpu_sim::rt
