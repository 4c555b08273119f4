// From the dtype of a tensor to the kernel for it.
#pragma once

#include "ops.h"
#include "specdec/row_floats.h"

namespace specdec::xpu {

// body(Float32{} | Float16{} | BFloat16{})
template <typename Body>
void with_logit_type(LogitType type, Body body) {
  switch (type) {
    case LogitType::kFloat32:
      return body(Float32{});
    case LogitType::kFloat16:
      return body(Float16{});
    case LogitType::kBfloat16:
      return body(BFloat16{});
  }
}

// Elements of a row that are worth a core: a tile.
constexpr int64_t kRowShare = 1024;

}  // namespace specdec::xpu
