// What is known of a kernel from its module.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "modules.h"

namespace xpu_sim::rt {

struct KernelInfo {
  const void* address = nullptr;
  std::string name;                // "verify<float>"
  const Module* module = nullptr;  // nullptr: not in any file, such as code made at run time
  std::vector<const Symbol*> sm_objects;  // that it declares itself
  size_t sm_bytes = 0;             // of those
};

// What a thread launched lately, by a few bits of the address: found without locking.
struct KernelCache {
  const KernelInfo* recent[256] = {};
};

// Found once per kernel and kept.
const KernelInfo* kernel_info(const void* kernel, const char* name, KernelCache* cache);

}  // namespace xpu_sim::rt
