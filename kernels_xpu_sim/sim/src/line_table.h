// Source lines from DWARF line programs (versions 2 to 5), so that findings name a line without tools or services.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace xpu_sim::rt {

class LineTable {
 public:
  explicit LineTable(const std::string& path);

  // False, and nothing changed: the address (relative to the module) is not known.
  bool find(uintptr_t address, std::string* file, int* line) const;
  // A file by its number in the line program at that offset of .debug_line; empty: unknown.
  std::string file(uint64_t line_program, int number) const;

 private:
  struct Row {
    uintptr_t address;
    int file;  // index into files_; -1: here a sequence ends
    int line;
  };
  friend class LineProgram;
  std::vector<Row> rows_;  // sorted by address
  std::vector<std::string> files_;
  std::vector<std::pair<uint64_t, std::vector<int>>> programs_;  // by offset: their numbers of files to ours
};

}  // namespace xpu_sim::rt
