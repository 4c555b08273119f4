#include "attention_kernels.h"

namespace specdec::attention {

extern const Kernels kPortable = {store_span, attend_queries};

}  // namespace specdec::attention
