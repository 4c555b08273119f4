// Source lines from DWARF line programs (versions 2 to 5), so that findings name a line without tools or services.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace xpu_sim::rt {

class LineTable {
 public:
  explicit LineTable(const std::string& path);

  // False, and nothing changed: the address (relative to the module) is not known.
  bool find(uintptr_t address, std::string* file, int* line) const;

 private:
  struct Row {
    uintptr_t address;
    int file;  // index into files_; -1: here a sequence ends
    int line;
  };
  friend class LineProgram;
  std::vector<Row> rows_;  // sorted by address
  std::vector<std::string> files_;
};

}  // namespace xpu_sim::rt
