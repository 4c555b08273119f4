// What a copy must satisfy before it may touch memory.
#pragma once

#include "dma_queue.h"
#include "gm_table.h"
#include "worker.h"

namespace xpu_sim::rt {

// Each returns where the options ask to keep going: then the copy is left out.
void bad_length(const Core& core, const Copy& c, long long n);
void bad_gm(const Core& core, const Copy& c);
void bad_local(const Core& core, const Copy& c, const char* frame);
void bad_group_shared(const Core& core, const Copy& c);
// An operation on more bytes than the compiler knows the object to have. Returns where the copy's own checks say it
// better.
void beyond_object(const Core& core, const char* operation, const char* local, long long bytes, size_t room, Site site);
// Does it lie in one object?
bool is_sm_object(const Core& core, const Copy& c);

// The span of GM that it moves from or to; nullptr: it is wrong, and left out.
inline __attribute__((always_inline)) const Span* check_copy(Core& core, const Copy& c, long long n,
                                                             const char* frame) {
  Worker& worker = *core.worker;
  if (__builtin_expect(n <= 0, 0)) {
    bad_length(core, c, n);
    return nullptr;
  }
  const char* const gm = to_gm(c.direction) ? c.to : c.from;
  const char* const local = to_gm(c.direction) ? c.from : c.to;
  const Span* const span = core.launch->gm->find(reinterpret_cast<uintptr_t>(gm), c.bytes, worker.gm_hint);
  if (__builtin_expect(!span || (span->read_only && to_gm(c.direction)), 0)) {
    bad_gm(core, c);
    return nullptr;
  }
  worker.gm_hint = span;
  if (local_fence(c.direction) == fence_sm) {
    const size_t offset = static_cast<size_t>(local - worker.sm());
    if (__builtin_expect(offset >= worker.sm_bytes() || c.bytes > worker.sm_bytes() - offset, 0)) {
      bad_local(core, c, frame);
      return nullptr;
    }
    if (__builtin_expect(!is_sm_object(core, c), 0)) return nullptr;
  } else {
    if (__builtin_expect(local < frame || local >= core.lm_top || c.bytes > static_cast<size_t>(core.lm_top - local),
                         0)) {
      bad_local(core, c, frame);
      return nullptr;
    }
    if (__builtin_expect((c.direction == gm2gsm || c.direction == gsm2gm) && core.launch->cores > kGroups, 0)) {
      bad_group_shared(core, c);
      return nullptr;
    }
  }
  return span;
}

}  // namespace xpu_sim::rt
