#include "attention_kernels.h"

namespace specdec::attention {

extern const Kernels kAvx512 = {store_span, attend_queries};

}  // namespace specdec::attention
