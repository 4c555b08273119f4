// Memory of a block: its shared variables, its dynamic shared memory, the stacks of its threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace simt {

// The shared variables are the thread-local ones of this library in the machine's thread that runs the block.
class SharedMemory {
 public:
  SharedMemory();
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Fills all of it, and allocates `bytes` of dynamic memory followed by a protected page. Called by that thread.
  void begin(size_t bytes, uint8_t filler);
  void* dynamic() const { return dynamic_; }
  size_t dynamic_bytes() const { return bytes_; }
  // The same address in another block's memory; null if it is not in this one.
  void* counterpart(const void* own, const SharedMemory& other) const;

 private:
  char* variables_ = nullptr;
  size_t variable_bytes_ = 0;
  char* arena_;
  char* dynamic_ = nullptr;
  size_t bytes_ = 0;
};

// Below each stack lies a page that cannot be touched.
class Stacks {
 public:
  static constexpr size_t kBytes = 128 << 10;

  Stacks();
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  char* operator[](size_t i);

 private:
  char* memory_;
  size_t ready_ = 0;
};

}  // namespace simt
