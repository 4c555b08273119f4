// Runs one kernel of the pairs, or several: NAME CLUSTERS CORES ... The generated file that includes this has `kernels`.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "xpu_sim/host.h"

using Kernel = void (*)(const int* in, int* out, int n, const int* host);

struct Entry {
  const char* name;
  Kernel kernel;
};

constexpr int kElements = 1024;

inline bool run_one(const Entry& entry, int clusters, int cores, const int* host) {
  static int in[kElements];
  for (int i = 0; i < kElements; ++i) in[i] = i;
  int* const out = xpu_sim::gm_alloc<int>(kElements, "out");
  xpu_sim::GmSpan span;
  span.data = in;
  span.bytes = sizeof in;
  span.name = "in";
  span.access = xpu_sim::GmAccess::read_only;
  span.element = sizeof(int);
  xpu_sim::Options options = xpu_sim::defaults();
  options.gm = &span;
  options.gm_count = 1;
  xpu_sim::launch(entry.kernel, clusters, cores, options)(in, out, kElements, host);
  xpu_sim::gm_free(out);
  return true;
}

template <size_t N>
int run_pairs(const Entry (&kernels)[N], int argc, char** argv) {
  const std::unique_ptr<int[]> host(new int[kElements]());
  for (int i = 1; i + 2 < argc; i += 3) {
    bool found = false;
    for (const Entry& entry : kernels) {
      if (std::strcmp(entry.name, argv[i]) == 0) found = run_one(entry, std::atoi(argv[i + 1]), std::atoi(argv[i + 2]), host.get());
    }
    if (!found) {
      std::fprintf(stderr, "no kernel %s\n", argv[i]);
      return 3;
    }
  }
  return 0;
}
