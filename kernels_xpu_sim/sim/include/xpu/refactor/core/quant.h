// A name under which wrappers include the frame of operators.
#pragma once
#include "xpu/xdnn.h"
