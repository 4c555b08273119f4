// Copies against the memory's history.
#pragma once

#include "state.h"

namespace xpu_sim::rt::strict {

void check_copy_conflicts(State& state, Core& core, const Copy& copy, bool sync);

// What a fence, a synchronous copy or the end of the core completes.
void finish_fenced(State& state, Core& core, uint32_t mask);
void finish_kind(State& state, Core& core, Direction direction);
void finish_lm(State& state, Core& core);

void atomic_access(State& state, Core& core, const char* address, bool store);
void check_room(Core& core, const void* address, size_t bytes, Site site);

}  // namespace xpu_sim::rt::strict
