// Which functions were inlined where, from DWARF's debugging information entries (versions 4 and 5).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dwarf_reader.h"
#include "elf_file.h"

namespace xpu_sim::rt {

// One level of inlining: what was inlined, and from where it was called.
struct InlinedCall {
  std::string function;
  bool artificial = false;     // the compiler's, such as an assignment of structures
  int file = 0, line = 0;      // the file's number in the unit's line program
};

struct InlinedCalls {
  uint64_t line_program = 0;   // the unit's offset in .debug_line
  std::string function;        // the outermost, which has code of its own
  std::vector<InlinedCall> calls;  // innermost first
};

// The registers of a function at the call that it is in.
struct StackFrame {
  uintptr_t frame_pointer, stack_pointer;
};

class DebugInfo {
 public:
  explicit DebugInfo(const std::string& path);

  // Empty function: nothing is known about the address (relative to the module).
  InlinedCalls at(uintptr_t address) const;

  // The variable of the function at `code` that holds `address`, which has that frame. Empty: none is known to, such as
  // an array of run-time length. `offset`: of the address in it.
  std::string variable(uintptr_t code, const StackFrame& frame, uintptr_t address, long long* offset) const;

 private:
  struct Unit;
  struct Entry;
  struct Attribute {
    uint64_t name, form;
    int64_t constant;
  };
  struct Abbreviation {
    uint64_t tag = 0;
    bool children = false;
    std::vector<Attribute> attributes;
  };

  bool read_unit(uint64_t offset, Unit* unit) const;
  void read_abbreviations(uint64_t offset, std::vector<Abbreviation>* out) const;
  Entry read_entry(DwarfReader* in, const Unit& unit) const;
  void walk(DwarfReader* in, const Unit& unit, uintptr_t address, InlinedCalls* found) const;
  void find_variable(DwarfReader* in, const Unit& unit, const StackFrame& frame, uintptr_t address, std::string* found,
                     long long* offset) const;
  uint64_t bytes_of(uint64_t type, const Unit& unit, int depth = 0) const;
  template <class F>
  void each_top_entry(uintptr_t address, F f) const;
  void skip_children(DwarfReader* in, const Unit& unit) const;
  bool covers(const Entry& entry, const Unit& unit, uintptr_t address) const;
  bool in_ranges(uint64_t offset, const Unit& unit, uintptr_t address) const;
  void name(uint64_t offset, const Unit& unit, std::string* name, bool* artificial, int depth = 0) const;

  ElfFile elf_;
  std::string_view info_, abbreviations_, strings_, line_strings_, ranges_, range_lists_;
};

}  // namespace xpu_sim::rt
