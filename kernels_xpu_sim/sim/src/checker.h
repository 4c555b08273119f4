// Events for checking builds. Plain builds have no checker and pay one test per event.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "dma.h"
#include "xpu_sim/site.h"

namespace xpu_sim::rt {

struct Core;
struct Launch;
class Worker;

class Checker {
 public:
  virtual ~Checker() = default;

  virtual void launch_begins(Worker&) {}
  virtual void launch_ends(Worker&) {}
  virtual void launch_is_over(Worker&, Launch&) {}  // its counters are kept: it may be run again
  virtual void cluster_begins(Worker&) {}
  // The next call is the kernel. The stack is then filled from the result up to what is in use; nullptr: it is not.
  virtual char* core_begins(Core&) { return nullptr; }
  virtual void core_ends(Core&) {}
  virtual void barrier_completes(Worker&, uint64_t /*cores*/) {}    // bit per core that meets there
  virtual void fence(Core&, uint32_t /*mask*/) {}
  // The copy is valid as to addresses. `sync`: it has finished when the call returns.
  virtual void copy_issued(Core&, const Copy&, bool /*sync*/) {}
  virtual void copies_finished(Core&, Direction) {}  // a synchronous copy has drained those of its kind
  virtual void core_pauses(Core&) {}  // others may run now
  virtual void atomic(Core&, const void* /*address*/, bool /*store*/) {}
  virtual void lock(Core&, bool /*acquired*/) {}  // ticket_lock_mix, unlock_mix
  virtual void room(Core&, const void*, size_t /*bytes*/, Site) {}  // a vector operation uses all of it
  // An index is beyond its array, which the next access may or may not show. False: nothing was made of it.
  virtual bool bad_index(Core&, Site, const std::string& /*message*/, const char* /*array*/, int64_t /*index*/) {
    return false;
  }
  virtual bool has_frame_pointers() const { return true; }  // kernels were compiled with them
  virtual bool frames_are_true() const { return true; }  // as large as without the checks
  // May others run between any two instructions of a core?
  virtual bool may_interrupt() const { return true; }
  virtual bool many_workers() const { return true; }  // clusters may run at the same time
};

// nullptr: a plain build. Set before main by the archive of a checking build.
extern __attribute__((visibility("hidden"))) Checker* checker;

}  // namespace xpu_sim::rt
