// An ELF file of this machine's class, read-only in memory.
#pragma once

#include <elf.h>
#include <link.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace xpu_sim::rt {

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

}  // namespace xpu_sim::rt
