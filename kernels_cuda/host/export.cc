// Exports set_seed: of the order in which the threads of later launches run, and of what is in shared memory that they
// have not written. Exports missed_guesses: how many rows a wrong guess has truncated since the last call.
#include <tvm/ffi/function.h>

#include <cstdint>
#include <utility>

#include "ptx.h"
#include "simt.h"

namespace {

void set_seed(int64_t seed) { simt::set_seed(static_cast<uint64_t>(seed)); }
TVM_FFI_DLL_EXPORT_TYPED_FUNC(set_seed, set_seed)

int64_t missed_guesses() { return std::exchange(specdec::cuda::ptx::missed_guesses, 0); }
TVM_FFI_DLL_EXPORT_TYPED_FUNC(missed_guesses, missed_guesses)

}  // namespace
