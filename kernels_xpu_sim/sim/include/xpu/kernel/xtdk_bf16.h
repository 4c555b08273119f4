// A name under which kernels include the dialect. Kernels rely on any one of them bringing everything.
#pragma once
#include "xpu_sim/kernel.h"
