// Zeroed memory of which only what is touched is committed.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>

namespace xpu_sim::rt::strict {

template <class T>
class LazyArray {
 public:
  LazyArray() = default;
  ~LazyArray() { release(); }
  LazyArray(const LazyArray&) = delete;
  LazyArray& operator=(const LazyArray&) = delete;

  // At least `count` elements. Contents are lost when it grows.
  void need(size_t count) {
    if (count <= count_) return;
    release();
    void* const p =
        mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<T*>(p);
    count_ = count;
  }

  T* data() { return data_; }
  T& operator[](size_t i) { return data_[i]; }

 private:
  void release() {
    if (data_) munmap(data_, count_ * sizeof(T));
    data_ = nullptr;
    count_ = 0;
  }
  T* data_ = nullptr;
  size_t count_ = 0;
};

}  // namespace xpu_sim::rt::strict
