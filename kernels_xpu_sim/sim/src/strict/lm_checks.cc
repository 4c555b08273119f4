// What is wrong with a load or store in LM.
#include "../trap.h"
#include "memory_calls.h"
#include "state.h"

namespace xpu_sim::rt::strict {

namespace {

const char* kind(bool write) { return write ? "write" : "read"; }

}  // namespace

void lm_finding(Core& core, Check check, const char* p, size_t bytes, bool write, const void* pc) {
  report_once(check, core, pc, 0, [&] {
    Finding f = finding_at(check, core, pc,
                           text("%s of %zu bytes of LM that a copy in flight %s; fence first", kind(write), bytes,
                                write ? "uses" : "has yet to fill"));
    describe(&f, core, p);
    const InFlight* const copy = copy_in_flight(*state_of(core), p, bytes);
    if (!copy) return f;
    f.other = text("%s_ASYNC of %zu bytes at %s:%d, no fence since", direction_name(copy->copy.direction),
                   copy->copy.bytes, copy->copy.site.file, copy->copy.site.line);
    return copy->decides ? depending(std::move(f), copy->decides) : f;
  });
}

void lm_load_slow(Core& core, const char* p, size_t bytes, const void* pc) {
  State& state = *state_of(core);
  uint8_t* const shadow = state.lm.of(p);
  if (any_bits(shadow, bytes) & kDestination) {
    lm_finding(core, Check::read_in_flight, p, bytes, false, pc);
  } else if (bytes <= 8 || bytes == kVector ? state.lm.has_unwritten(p, bytes) : state.lm.all_unwritten(p, bytes)) {
    unwritten_load(state, core, pc, [&] {
      const char* first = nullptr;
      size_t count = 0;
      state.lm.each_unwritten(p, bytes, [&](char* at, size_t n) {
        if (!first) first = at;
        count += n;
      });
      std::string message = text("read of %zu bytes of LM that nothing has written", bytes);
      if (count < bytes) message = text("read of %zu bytes of LM, of which nothing has written %zu", bytes, count);
      Finding f = finding_at(Check::uninitialised_read, core, pc, message);
      describe(&f, core, first);
      return f;
    });
    if (__builtin_expect(pc == state.on_trial, 0))
      state.lm.each_unwritten(p, bytes, [&](char* at, size_t n) { try_other_value(state, at, n, pc); });
  }
  set_bits(shadow, bytes, kWritten);  // told once; or written by code that does not tell
}

void lm_store_slow(Core& core, const char* p, size_t bytes, const void* pc) {
  lm_finding(core, Check::write_in_flight, p, bytes, true, pc);
}

void unaligned(Core& core, const char* p, size_t bytes, const void* pc) {
  Finding f = finding_at(Check::ld_st_unalign, core, pc,
                         text("access to %zu bytes at an address that is no multiple of %zu", bytes, bytes));
  describe(&f, core, p);
  trap_or_go_on(std::move(f));
}

}  // namespace xpu_sim::rt::strict
