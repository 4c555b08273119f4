#include "attention_kernels.h"
#include "linear_kernels.h"

namespace specdec {

extern const attention::Kernels attention::kAvx2 = {store_span, attend_queries};
extern const linear::Kernels linear::kAvx2 = {multiply, norm};

}  // namespace specdec
