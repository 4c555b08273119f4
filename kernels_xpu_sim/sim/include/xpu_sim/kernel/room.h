// How much of its object lies at and behind an address, where the compiler can tell; else the largest number. The
// variables of LM have no names at run time, so that this is all that is known of them there.
#pragma once

#if __has_builtin(__builtin_dynamic_object_size)
#define XPU_SIM_ROOM(p) __builtin_dynamic_object_size(p, 0)
#else
#define XPU_SIM_ROOM(p) __builtin_object_size(p, 0)
#endif
