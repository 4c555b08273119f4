// Vectors of the including file's instruction set. All of it has internal linkage, so that the linker does not mix
// versions.
#pragma once

#include <cstdint>

namespace specdec {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16, kRegisters = 32;
#elif defined(__AVX2__)
constexpr int kLanes = 8, kRegisters = 16;
#else
constexpr int kLanes = 4, kRegisters = 16;
#endif

typedef float Vector __attribute__((vector_size(kLanes * 4)));
typedef int32_t Integers __attribute__((vector_size(kLanes * 4)));
typedef float Unaligned __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

inline Vector load(const float* from) { return *reinterpret_cast<const Unaligned*>(from); }
inline void store(float* to, Vector x) { *reinterpret_cast<Unaligned*>(to) = x; }
inline Vector all(float x) { return x - Vector{}; }

}  // namespace
}  // namespace specdec
