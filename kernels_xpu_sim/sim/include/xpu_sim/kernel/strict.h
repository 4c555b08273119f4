// The strict build: which of the library's functions a kernel's file calls instead.
#pragma once

// -fsanitize=thread tells of loads and stores, but not of those inside memcpy. Renaming the calls in the assembly catches
// also those that the compiler makes.
#if defined(XPU_SIM_STRICT)
__asm__(
    ".set memcpy, xpu_sim_memcpy\n"
    ".set memmove, xpu_sim_memmove\n"
    ".set memset, xpu_sim_memset\n"
    // A throw would first be seen as a store to the exception, in host memory.
    ".set __cxa_allocate_exception, xpu_sim_allocate_exception\n");
#endif
