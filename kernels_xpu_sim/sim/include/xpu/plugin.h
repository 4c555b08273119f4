// For wrappers whose project has no xpu/plugin.h of its own, which is found first (-I).
#pragma once
#include "xpu/xdnn.h"
