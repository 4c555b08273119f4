// What is wrong with a load or store in LM.
#include "../trap.h"
#include "memory_calls.h"
#include "state.h"

namespace xpu_sim::rt::strict {

namespace {

const char* kind(bool write) { return write ? "write" : "read"; }

// The copy in flight that the range belongs to.
std::string in_flight_text(const State& state, const Core& core, const char* p, size_t bytes) {
  for (const InFlight& f : state.in_flight[core.id]) {
    if (p + bytes <= f.local() || p >= f.local() + f.copy.bytes) continue;
    return text("%s_ASYNC of %zu bytes at %s:%d, no fence since", direction_name(f.copy.direction), f.copy.bytes,
                f.copy.site.file, f.copy.site.line);
  }
  return "";
}

}  // namespace

void lm_finding(Core& core, Check check, const char* p, size_t bytes, bool write, const void* pc) {
  report_once(check, core, pc, 0, [&] {
    std::string message = text("%s of %zu bytes of LM ", kind(write), bytes);
    if (check == Check::uninitialised_read) {
      message += "that nothing has written";
    } else {
      message +=
          write ? "that a copy in flight uses; fence first" : "that a copy in flight has yet to fill; fence first";
    }
    Finding f = finding_at(check, core, pc, message);
    describe(&f, core, p);
    if (check != Check::uninitialised_read) f.other = in_flight_text(*state_of(core), core, p, bytes);
    return f;
  });
}

void lm_load_slow(Core& core, const char* p, size_t bytes, const void* pc) {
  State& state = *state_of(core);
  uint8_t* const shadow = state.lm.of(p);
  if (any_bits(shadow, bytes) & kDestination) {
    lm_finding(core, Check::read_in_flight, p, bytes, false, pc);
  } else if (bytes <= 8 ? state.lm.has_unwritten(p, bytes) : state.lm.all_unwritten(p, bytes)) {
    lm_finding(core, Check::uninitialised_read, p, bytes, false, pc);
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
  trap(std::move(f));
}

}  // namespace xpu_sim::rt::strict
