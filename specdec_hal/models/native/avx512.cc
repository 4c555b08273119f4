#include "attention_kernels.h"
#include "linear_kernels.h"

namespace specdec {

extern const attention::Kernels attention::kAvx512 = {store_span, attend_queries};
extern const linear::Kernels linear::kAvx512 = {multiply, norm};

}  // namespace specdec
