// Ops that run the rules of slots and rows serially on the host, exported as those of a backend are: for the tests that
// compare the rules with the reference.
#pragma once

#include <array>
#include <cstdint>

#include "specdec_ops/signature.h"

namespace specdec::serial {

constexpr List<Limit> kUnlimited;

// How the work is split, as kernels split it: the integers behind a call's attributes, 0 where there are none.
using Split = std::array<int64_t, 3>;
using Context = const Split&;

int bind_op(const OpSignature& op, List<Limit> limits, void (*launch)(const void* args, Context split),
            const void* given, int count, void* plan);
int tell_limits(const OpSignature& op, List<Limit> limits, void* map);

}  // namespace specdec::serial
