// Qualifiers of functions, variables and pointers.
#pragma once

#include <cstddef>

// The command line of a kernel compiler says which device it compiles for; a plain g++ call does not.
#ifndef __xpu__
#define __xpu__ 1
#endif
#ifndef __XPU3__
#define __XPU3__ 1
#endif

#define __global__
#define __device__
#define __host__

// LM is the core's stack, so a plain local is already where it belongs.
#define __local__
#define __simd__ __attribute__((aligned(64)))

// SM holds one copy per cluster for the whole kernel. A worker thread runs one cluster at a time, so thread-local
// storage is exactly that, and the segment of the kernel's module is the SM image.
#if defined(XPU_SIM_SM_REDZONES)
// Checking builds put a gap before each object, which nobody may touch. The alignment is the same in all builds; it is
// given here because a __simd__ written before __shared__ lands on the gap.
#define XPU_SIM_JOIN_(a, b) a##b
#define XPU_SIM_JOIN(a, b) XPU_SIM_JOIN_(a, b)
#define __shared__                                                                                         \
  static thread_local __attribute__((used, aligned(64))) char XPU_SIM_JOIN(xpu_sim_gap_, __COUNTER__)[64]; \
  static thread_local __attribute__((aligned(64)))
#else
#define __shared__ static thread_local __attribute__((aligned(64)))
#endif

// How much of its object lies at and after an address, where the compiler can tell; else the largest number. The
// variables of LM have no names at run time, so that this is all that is known of them there.
#if __has_builtin(__builtin_dynamic_object_size)
#define XPU_SIM_ROOM(p) __builtin_dynamic_object_size(p, 0)
#else
#define XPU_SIM_ROOM(p) __builtin_object_size(p, 0)
#endif

// The group's memory is carved out of its LM and used with one core per group, so it is private to that core: a local.
// Each one reports its size at the end of its scope.
namespace xpu_sim::detail {
void group_shared_was_used(char* object, size_t bytes);
}
inline __attribute__((always_inline)) void xpu_sim_group_shared(void* object) {
  ::xpu_sim::detail::group_shared_was_used(static_cast<char*>(object), XPU_SIM_ROOM(object));
}
#define __group_shared__ __attribute__((aligned(64), cleanup(xpu_sim_group_shared)))

// An address decides its space, not a type.
#define __global_ptr__
#define _global_ptr_
#define __shared_ptr__
#define _shared_ptr_
#define __group_shared_ptr__
#define _group_shared_ptr_
#define __local_ptr__
#define _local_ptr_
