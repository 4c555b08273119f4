#include "prepare_inputs.cuh"
#include "slot_launch.cuh"

namespace specdec::cuda {

void prepare_inputs(const PrepareInputsArgs& a, cudaStream_t stream) {
  with_slot_shape(a.slots, [&](auto shape) {
    launch("prepare_inputs", stream, packed_shape(shape, max64(a.token_capacity, a.slots)),
           prepare_inputs_kernel<decltype(shape)>, a);
  });
}

}  // namespace specdec::cuda
