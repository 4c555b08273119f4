#include "memory.h"

#include <link.h>
#include <sys/mman.h>

#include <cstring>
#include <new>

#include "block.h"

namespace simt {
namespace {

constexpr size_t kArena = 256 << 10, kPage = 4096;

struct Module {
  char* variables;  // of the calling thread
  size_t bytes;
};

thread_local char touched;  // before it is, a thread may have no copy of the library's variables

// This library's thread-local variables.
Module module() {
  touched = 1;
  Module found = {};
  dl_iterate_phdr([](dl_phdr_info* info, size_t, void* result) {
    const auto here = reinterpret_cast<uintptr_t>(&module);
    bool ours = false;
    size_t bytes = 0;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const ElfW(Phdr)& part = info->dlpi_phdr[i];
      if (part.p_type == PT_TLS) bytes = part.p_memsz;
      const uintptr_t begin = info->dlpi_addr + part.p_vaddr;
      ours |= part.p_type == PT_LOAD && here >= begin && here - begin < part.p_memsz;
    }
    if (ours) *static_cast<Module*>(result) = {static_cast<char*>(info->dlpi_tls_data), bytes};
    return ours ? 1 : 0;
  }, &found);
  return found;
}

char* reserve(size_t bytes, int protection) {
  void* const memory = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return static_cast<char*>(memory);
}

}  // namespace

SharedMemory::SharedMemory() : arena_(reserve(kArena + kPage, PROT_READ | PROT_WRITE)) {
  mprotect(arena_ + kArena, kPage, PROT_NONE);
}

SharedMemory::~SharedMemory() { munmap(arena_, kArena + kPage); }

void SharedMemory::begin(size_t bytes, uint8_t filler) {
  const Module own = module();
  variables_ = own.variables;
  variable_bytes_ = own.bytes;
  Block* const block = current_block();
  std::memset(own.variables, filler, own.bytes);
  set_current_block(block);
  bytes_ = bytes;
  dynamic_ = arena_ + kArena - (bytes + 15) / 16 * 16;
  std::memset(dynamic_, filler, bytes);
}

void* SharedMemory::counterpart(const void* own, const SharedMemory& other) const {
  const char* const at = static_cast<const char*>(own);
  if (at >= variables_ && at < variables_ + variable_bytes_) return other.variables_ + (at - variables_);
  if (at >= dynamic_ && at < dynamic_ + bytes_) return other.dynamic_ + (at - dynamic_);
  return nullptr;
}

Stacks::Stacks() : memory_(reserve(kMaxThreads * (kBytes + kPage), PROT_NONE)) {}

Stacks::~Stacks() { munmap(memory_, kMaxThreads * (kBytes + kPage)); }

char* Stacks::operator[](size_t i) {
  for (; ready_ <= i; ++ready_) {
    char* const low = memory_ + ready_ * (kBytes + kPage) + kPage;
    if (mprotect(low, kBytes, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
  }
  return memory_ + i * (kBytes + kPage) + kPage;
}

}  // namespace simt
