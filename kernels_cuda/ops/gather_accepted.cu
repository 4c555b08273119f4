#include "gather_accepted.cuh"
#include "slot_launch.cuh"

namespace specdec::cuda {

void gather_accepted(const GatherAcceptedArgs& a, cudaStream_t stream) {
  with_slot_shape(a.slots, [&](auto shape) {
    launch("gather_accepted", stream, packed_shape(shape, max64(a.accept_capacity, a.slots)),
           gather_accepted_kernel<decltype(shape)>, a);
  });
}

}  // namespace specdec::cuda
