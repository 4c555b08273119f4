// Findings that somebody has looked at: a file with one line each, and a reason.
//
//   # check, where (a file, or file:line; * and ? as in a shell), why it is right
//   missing_fence  vendor/top_k.xpu:81  the wrapper launches one core
//   race           vendor/*.h           flags are only ever set to 1
#pragma once

#include <string>
#include <vector>

#include "xpu_sim/finding.h"

namespace xpu_sim {

class Suppressions {
 public:
  // Returns what is wrong with the file, or an empty string.
  std::string read(const std::string& path);

  // Is the finding among them?
  bool hold(const Finding& finding);

  // Those that have held no finding, in the order of the file, as "FILE:LINE: check where".
  std::vector<std::string> stale() const;

 private:
  struct Entry {
    std::string check, where, place;  // `place`: its own, in the file
    bool used;
  };
  std::vector<Entry> entries_;
};

}  // namespace xpu_sim
