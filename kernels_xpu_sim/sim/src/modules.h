// The programs and libraries in memory: symbols, thread-local segments, source lines, kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "xpu_sim/finding.h"

namespace xpu_sim::rt {

class DebugInfo;
struct Scalar;
struct StackFrame;

struct Symbol {
  uintptr_t begin = 0;  // relative to the module; for SM objects: to its thread-local segment
  size_t bytes = 0;
  std::string name;     // as the linker knows it
};

struct Module {
  std::string path;
  uintptr_t base = 0;                // what is added to addresses of the file
  uintptr_t low = 0, high = 0;       // addresses it occupies
  std::vector<std::pair<uintptr_t, uintptr_t>> read_only;  // its constants and code
  size_t tls_id = 0, tls_bytes = 0;  // its thread-local segment
  std::vector<Symbol> functions;     // sorted by address
  std::vector<Symbol> sm_objects;    // sorted by address: thread-local variables of functions
  std::vector<Symbol> sm_gaps;       // what checking builds put between them
  std::vector<Symbol> sm_guards;     // "is it constructed": the compiler's, for types that have constructors
  bool has_symbols = false;          // false: stripped, so that SM objects are not known
  std::shared_ptr<DebugInfo> debug;  // read when first asked for

  const Symbol* function_at(uintptr_t address) const;
  const Symbol* sm_object_at(size_t offset) const;
  // The same, or the last one before: what an access beyond the end probably meant.
  const Symbol* sm_object_near(size_t offset) const;
  // This thread's copy of the thread-local segment; nullptr: the module has none.
  char* tls_block() const;
};

// The module at an address; nullptr: none. Read once and kept.
const Module* module_at(const void* address);

// Source position of an instruction, by the module's debug information; the function's name at least. Of code that the
// compiler made up, such as an assignment of structures: the line that it is for.
Location locate(const void* pc);
// The same, followed by the places that the functions inlined there were called from, up to the one with code of its
// own.
std::vector<Location> locate_inlined(const void* pc);

// The variable on the stack that holds `address`, of the function at `pc` with that frame; empty: not known. `offset`:
// of the address in it.
std::string local_variable(const void* pc, const StackFrame& frame, const void* address, long long* offset);
// The scalar of that variable; and of a variable in SM, which begins at an offset as well.
Scalar local_scalar(const void* pc, const StackFrame& frame, const void* address);
Scalar sm_scalar(const Module& module, size_t offset);
// A name in C++ from that of a symbol or type; empty: it is none.
std::string demangled(const std::string& symbol);
// "void f<float>(int)" becomes "f<float>"; other names are returned as they are.
std::string readable(const std::string& symbol);
// The variable's name of a function's static variable.
std::string variable_of(const std::string& symbol);

struct KernelInfo {
  const void* address = nullptr;
  std::string name;                // "verify<float>"
  const Module* module = nullptr;  // nullptr: not in any file, such as code made at run time
  std::vector<const Symbol*> sm_objects;  // that it declares itself
  size_t sm_bytes = 0;             // of those
};

// What a thread launched lately, by a few bits of the address: found without locking.
struct KernelCache {
  const KernelInfo* recent[256] = {};
};

// Found once per kernel and kept.
const KernelInfo* kernel_info(const void* kernel, const char* name, KernelCache* cache);

}  // namespace xpu_sim::rt
