// Source lines, inlined calls and variables from a file's debug information (DWARF 5), so that findings name them
// without tools or services.
#pragma once

#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "xpu_sim/finding.h"

namespace xpu_sim::rt {

// An ELF file of this machine's class, read-only in memory.
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

// Read when first asked for; the caller sees to it that one thread asks at a time. Code is an address relative to the
// module.
class DebugInfo {
 public:
  explicit DebugInfo(const std::string& path);
  ~DebugInfo();

  // The source position of an instruction, followed by the places that the functions inlined there were called from, up
  // to `function`, the one with code of its own. Of code that the compiler made up, such as an assignment of
  // structures: the line that it is for.
  std::vector<Location> places(uintptr_t code, const std::string& function);

  // The variable of the function at `code` that holds `address`, which has that frame. Empty: none is known to, such as
  // an array of run-time length. `offset`: of the address in it.
  std::string variable(uintptr_t code, const StackFrame& frame, uintptr_t address, long long* offset);
  // The scalar of that variable. None where several variables share the memory and do not agree.
  Scalar scalar(uintptr_t code, const StackFrame& frame, uintptr_t address);
  // The scalar of a thread-local variable at that offset in the module's segment.
  Scalar thread_local_scalar(uintptr_t offset);

 private:
  struct Tables;
  std::unique_ptr<Tables> tables_;
};

}  // namespace xpu_sim::rt
