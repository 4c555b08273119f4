// What kernels of ops on rows have in common.
#pragma once

#include "../rows/row_team.h"
#include "op.h"
#include "tiles.h"

namespace specdec {

static_assert(RowShared::kRanks == kMaxClusterCores);

namespace xpu {

constexpr Limit kRowLimits[] = {{"V", served::kV}};

// An op on rows of logits, each of which a cluster shares: NAME_kernel<type of logits>. `a`: the arguments.
#define SPECDEC_ROWS_OP(NAME, ARGS, ROWS)                                                \
  void NAME(const ARGS& a, const LaunchOptions& options) {                               \
    if ((ROWS) == 0) return;                                                             \
    with_float_type(a.logits_type, [&](auto type) {                                      \
      launch(options, ROWS, parts_of(a.V, kRowShare), NAME##_kernel<decltype(type)>, a); \
    });                                                                                  \
  }                                                                                      \
  SPECDEC_OP(NAME, kRowLimits)

}  // namespace xpu
}  // namespace specdec
