#include "elf_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

namespace xpu_sim::rt {

ElfFile::ElfFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  struct stat info;
  if (fstat(fd, &info) == 0 && static_cast<size_t>(info.st_size) > sizeof(ElfW(Ehdr))) {
    const size_t bytes = static_cast<size_t>(info.st_size);
    void* const p = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p != MAP_FAILED) {
      data_ = static_cast<const char*>(p);
      bytes_ = bytes;
    }
  }
  close(fd);
  if (data_ && std::memcmp(data_, ELFMAG, SELFMAG) != 0) {
    munmap(const_cast<char*>(data_), bytes_);
    data_ = nullptr;
  }
}

ElfFile::~ElfFile() {
  if (data_) munmap(const_cast<char*>(data_), bytes_);
}

std::string_view ElfFile::section(const char* name) const {
  if (!data_) return {};
  const ElfW(Ehdr)& header = *reinterpret_cast<const ElfW(Ehdr)*>(data_);
  const size_t table = header.e_shoff, count = header.e_shnum;
  if (table == 0 || table + count * sizeof(ElfW(Shdr)) > bytes_ || header.e_shstrndx >= count) return {};
  const ElfW(Shdr)* const sections = reinterpret_cast<const ElfW(Shdr)*>(data_ + table);
  const ElfW(Shdr)& names = sections[header.e_shstrndx];
  for (size_t i = 0; i < count; ++i) {
    const ElfW(Shdr)& s = sections[i];
    if (names.sh_offset + s.sh_name >= bytes_ || std::strcmp(data_ + names.sh_offset + s.sh_name, name) != 0) continue;
    if (s.sh_type == SHT_NOBITS || (s.sh_flags & SHF_COMPRESSED) || s.sh_offset + s.sh_size > bytes_) return {};
    return {data_ + s.sh_offset, s.sh_size};
  }
  return {};
}

}  // namespace xpu_sim::rt
