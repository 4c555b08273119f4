// A test is a kernel, TEST(name, clusters, cores) { ... }: every core notes the first line whose CHECK fails, and says so
// at the end. test_builtins.py finds the tests by this macro.
#pragma once

#include "xpu/kernel/cluster.h"

struct Failure {
  int line = 0;
  __device__ void note(int at) {
    if (line == 0) line = at;
  }
};

#define CHECK(condition) \
  if (!(condition)) failure.note(__LINE__)

#define TEST(name, clusters, cores)                                                                     \
  static __device__ void name##_body(Failure& failure, const int* in, int* out);                        \
  __global__ void name(const int* in, int* out, int* failures) {                                        \
    Failure failure;                                                                                    \
    name##_body(failure, in, out);                                                                      \
    mfence_lm();                                                                                        \
    LM2GM(&failure.line, failures + cluster_id() * core_num() + core_id(), sizeof(int));                \
  }                                                                                                     \
  static __device__ void name##_body([[maybe_unused]] Failure& failure, [[maybe_unused]] const int* in, \
                                     [[maybe_unused]] int* out)
