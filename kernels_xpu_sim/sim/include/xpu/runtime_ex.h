// A name under which programs include the runtime.
#pragma once
#include "xpu/runtime.h"
