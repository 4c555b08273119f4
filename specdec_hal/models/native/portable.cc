#include "attention_kernels.h"
#include "linear_kernels.h"

namespace specdec {

extern const attention::Kernels attention::kPortable = {store_span, attend_queries};
extern const linear::Kernels linear::kPortable = {multiply, norm};

}  // namespace specdec
