// Exports set_seed: of the order in which the threads of later launches run, and of what is in shared memory that they
// have not written.
#include <tvm/ffi/function.h>

#include <cstdint>

#include "simt.h"

namespace {

void set_seed(int64_t seed) { simt::set_seed(static_cast<uint64_t>(seed)); }
TVM_FFI_DLL_EXPORT_TYPED_FUNC(set_seed, set_seed)

}  // namespace
