#pragma once

#include "../ops/check.h"

namespace specdec::cuda {

void launch_empty(cudaStream_t stream);

}  // namespace specdec::cuda
