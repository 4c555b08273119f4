// Runs one test of the builtins. The generated file that includes this has `tests`.
#pragma once

#include <cstdio>
#include <cstring>

#include "xpu_sim/host.h"

struct Test {
  const char* name;
  void (*kernel)(const int* in, int* out, int* failures);
  int clusters, cores;
};

constexpr int kElements = 4096;  // of `in`, where element i is i, and of `out`

template <size_t N>
int run_test(const Test (&tests)[N], const char* name) {
  for (const Test& test : tests) {
    if (std::strcmp(test.name, name) != 0) continue;
    const int all = test.clusters * test.cores;
    int* const in = xpu_sim::gm_alloc<int>(kElements, "in");
    int* const out = xpu_sim::gm_alloc<int>(kElements, "out");
    int* const failures = xpu_sim::gm_alloc<int>(static_cast<size_t>(all), "failures");
    for (int i = 0; i < kElements; ++i) in[i] = i;
    const int status = xpu_sim::launch(test.kernel, test.clusters, test.cores)(in, out, failures);
    int failed = status;
    for (int i = 0; i < all; ++i) {
      if (failures[i] == 0) continue;
      std::printf("%s: line %d, cluster %d, core %d\n", name, failures[i], i / test.cores, i % test.cores);
      failed = 1;
      break;
    }
    return failed;
  }
  std::printf("no test %s\n", name);
  return 3;
}
