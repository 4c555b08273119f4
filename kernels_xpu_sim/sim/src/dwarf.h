// Source lines, inlined calls and variables from a file's debug information (DWARF 2 to 5 lines, 4 and 5 entries), so
// that findings name them without tools or services.
#pragma once

#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace xpu_sim::rt {

// An ELF file of this machine's class, read-only in memory.

class DwarfReader;

class ElfFile {
 public:
  // A file that cannot be read, or is not ELF, has no sections.
  explicit ElfFile(const std::string& path);
  ~ElfFile();
  ElfFile(const ElfFile&) = delete;
  ElfFile& operator=(const ElfFile&) = delete;

  // Contents of a section; empty: absent or compressed.
  std::string_view section(const char* name) const;

  // Calls f(name, symbol) for every symbol of the full table. False: the file is stripped, and f saw the exported only.
  template <class F>
  bool each_symbol(F f) const {
    std::string_view table = section(".symtab"), names = section(".strtab");
    const bool full = !table.empty();
    if (!full) {
      table = section(".dynsym");
      names = section(".dynstr");
    }
    for (size_t at = 0; at + sizeof(ElfW(Sym)) <= table.size(); at += sizeof(ElfW(Sym))) {
      const ElfW(Sym)& s = *reinterpret_cast<const ElfW(Sym)*>(table.data() + at);
      if (s.st_name < names.size()) f(names.data() + s.st_name, s);
    }
    return full;
  }

 private:
  const char* data_ = nullptr;
  size_t bytes_ = 0;
};

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

// The scalar that a byte of a variable belongs to.
struct Scalar {
  enum Kind : uint8_t { none, integer, natural, other };  // none: a union, a bit field, or not known
  Kind kind = none;                                        // natural: without a sign
  uintptr_t begin = 0;                                     // from where `address` is counted
  size_t bytes = 0;
  bool described = false;  // the function was found, whatever is known of its variables
};

class DebugInfo {
 public:
  explicit DebugInfo(const std::string& path);

  // Empty function: nothing is known about the address (relative to the module).
  InlinedCalls at(uintptr_t address) const;

  // The variable of the function at `code` that holds `address`, which has that frame. Empty: none is known to, such as
  // an array of run-time length. `offset`: of the address in it.
  std::string variable(uintptr_t code, const StackFrame& frame, uintptr_t address, long long* offset) const;
  // The scalar of that variable. None where several variables share the memory and do not agree.
  Scalar scalar(uintptr_t code, const StackFrame& frame, uintptr_t address) const;
  // The scalar of a thread-local variable at that offset in the module's segment.
  Scalar thread_local_scalar(uintptr_t offset) const;

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
  // What a variable's type says of its memory: a scalar, an array of `element`, or a record of members.
  struct Type {
    Scalar::Kind kind = Scalar::none;
    size_t bytes = 0;  // 0: not known when compiling
    const Type* element = nullptr;
    std::vector<std::pair<size_t, const Type*>> members;  // from where
  };
  // In memory of a function's own: `offset` bytes from what `base` says, an operation of DWARF.
  struct Variable {
    std::string name;
    uint64_t base;
    int64_t offset;
    const Type* type;
    bool lives = true;  // its block has the code
  };
  struct Function {
    bool found = false;
    std::vector<Variable> variables;
  };
  const Function& function(uintptr_t code) const;
  void read_variables(DwarfReader* in, const Unit& unit, uintptr_t code, std::vector<Variable>* found) const;
  bool read_variable(const Entry& entry, const Unit& unit, Variable* found) const;
  void read_thread_locals() const;
  const Type* type_at(uint64_t offset, const Unit& unit) const;
  void read_members(DwarfReader* in, const Unit& unit, Type* type) const;
  static Scalar scalar_in(const Type* type, uintptr_t at);
  template <class F>
  void each_top_entry(uintptr_t address, F f) const;
  void skip_children(DwarfReader* in, const Unit& unit) const;
  bool covers(const Entry& entry, const Unit& unit, uintptr_t address) const;
  bool in_ranges(uint64_t offset, const Unit& unit, uintptr_t address) const;
  void name(uint64_t offset, const Unit& unit, std::string* name, bool* artificial, int depth = 0) const;

  // Read when first asked for; the caller sees to it that one thread asks at a time.
  mutable std::map<uint64_t, Type> types_;  // by offset in .debug_info
  mutable std::map<uintptr_t, Function> functions_;  // by code address
  mutable std::map<uintptr_t, const Type*> thread_locals_;
  mutable bool has_thread_locals_ = false;
  ElfFile elf_;
  std::string_view info_, abbreviations_, strings_, line_strings_, ranges_, range_lists_;
};

}  // namespace xpu_sim::rt
