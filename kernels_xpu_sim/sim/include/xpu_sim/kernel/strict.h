// Which functions a kernel's file calls in place of the library's.
#pragma once

// -fsanitize=thread reports loads and stores, but not those inside memcpy and its like. Renaming the calls in the
// assembly catches also those that the compiler makes.
#if defined(XPU_SIM_STRICT)
__asm__(
    ".set memcpy, xpu_sim_memcpy\n"
    ".set memmove, xpu_sim_memmove\n"
    ".set memset, xpu_sim_memset\n"
    ".set memcmp, xpu_sim_memcmp\n"
    ".set bcmp, xpu_sim_memcmp\n"
    ".set memchr, xpu_sim_memchr\n"
    ".set strlen, xpu_sim_strlen\n"
    // A throw would first be seen as a store to the exception, in host memory.
    ".set __cxa_allocate_exception, xpu_sim_allocate_exception\n");
#else
// The line of a throw is not known any more when it has been unwound.
__asm__(".set __cxa_throw, xpu_sim_throw\n");
#endif
