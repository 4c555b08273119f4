// HOST_TEST(name) { ... }: a test of the host side. test_host.py finds them by this macro and runs each in a process.
#pragma once

#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kernels.h"
#include "xpu_sim/host.h"

using namespace xpu_sim;

struct HostTest {
  const char* name;
  void (*run)();
  HostTest* next;
  static HostTest*& first() {
    static HostTest* list = nullptr;
    return list;
  }
  HostTest(const char* n, void (*r)()) : name(n), run(r), next(first()) { first() = this; }
};

inline std::atomic<int> failed_line{0};  // tests have threads

#define HOST_TEST(name)                            \
  static void name();                              \
  static const HostTest name##_test(#name, &name); \
  static void name()

#define EXPECT(condition)                                                  \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::printf("%s:%d: expected %s\n", __FILE__, __LINE__, #condition); \
      failed_line = __LINE__;                                              \
    }                                                                      \
  } while (false)

// The findings since the last call, which must all be of one check.
inline std::vector<Finding> found(const char* check) {
  std::vector<Finding> all = take_findings();
  if (all.empty()) {
    std::printf("expected %s, found nothing\n", check);
    failed_line = 1;
    all.emplace_back();
  }
  for (const Finding& f : all) {
    if (f.check == check) continue;
    std::printf("expected %s, found:\n%s", check, to_text(f).c_str());
    failed_line = 1;
  }
  return all;
}

template <class T>
struct Gm {  // an array in GM
  T* data;
  size_t count;
  Gm(size_t n, const char* name, T first = T(), T step = T()) : data(gm_alloc<T>(n, name)), count(n) {
    for (size_t i = 0; i < n; ++i) data[i] = static_cast<T>(first + static_cast<T>(i) * step);
  }
  ~Gm() { gm_free(data); }
  Gm(const Gm&) = delete;
  Gm& operator=(const Gm&) = delete;
  T& operator[](size_t i) { return data[i]; }
  operator T*() { return data; }
};
