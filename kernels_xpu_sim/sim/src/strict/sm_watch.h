// Stores to SM that the hooks do not tell of: the compiler lets a function return its structure right into the variable
// it is assigned to. They are seen by their effect: small variables are compared with a copy whenever the running core
// calls the emulator, and so before any other core runs.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

#include "sm_objects.h"

namespace xpu_sim::rt::strict {

class SmWatch {
 public:
  // After the objects have been filled.
  void cluster_begins(const SmObjects& objects, const char* sm);
  // What was put there by the emulator itself.
  void changed(const char* address, size_t bytes);

  // Calls f(first byte, bytes, bits of those that differ) for each word that is not as it was at the last call.
  template <class F>
  void each_change(F f) {
    for (const Range& r : ranges_) {
      const char* const was = copy_.data() + r.copy;
      if (__builtin_expect(std::memcmp(r.begin, was, r.bytes) != 0, 0)) compare(r, f);
    }
  }

 private:
  static constexpr size_t kLargest = 2048, kMost = 4096;  // bytes of an object and of all: a call costs some 50 ns
  struct Range {
    const char* begin;
    size_t bytes, copy;
  };

  template <class F>
  void compare(const Range& r, F f) {
    char* const was = copy_.data() + r.copy;
    for (size_t i = 0; i < r.bytes; i += 4) {
      const size_t n = r.bytes - i < 4 ? r.bytes - i : 4;
      unsigned differ = 0;
      for (size_t k = 0; k < n; ++k) differ |= unsigned{r.begin[i + k] != was[i + k]} << k;
      if (!differ) continue;
      std::memcpy(was + i, r.begin + i, n);
      f(r.begin + i, n, differ);
    }
  }

  std::vector<Range> ranges_;
  std::vector<char> copy_;
};

}  // namespace xpu_sim::rt::strict
