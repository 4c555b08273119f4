// A cell of a bool tensor: any byte but 0 is true. A C++ bool may hold no other byte than 0 and 1.
#pragma once

#include "specdec/platform.h"

namespace specdec {

struct Flag {
  uint8_t byte;

  SPECDEC_HD operator bool() const { return byte != 0; }
  SPECDEC_HD Flag& operator=(bool value) {
    byte = value ? 1 : 0;
    return *this;
  }
};

}  // namespace specdec
