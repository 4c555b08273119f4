#include "sets.h"

#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

namespace specdec {

int64_t instruction_sets() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 1;
  return __builtin_cpu_supports("avx512f") ? 3 : 2;
#else
  return 1;
#endif
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(instruction_sets, instruction_sets)

size_t checked_set(const char* function, int64_t set) {
  const int64_t sets = instruction_sets();
  if (set < 0 || set >= sets) {
    TVM_FFI_THROW(ValueError) << function << ": argument 'set': expected 0.." << sets - 1 << ", got " << set;
  }
  return static_cast<size_t>(set);
}

}  // namespace specdec
