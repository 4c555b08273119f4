// The history of a piece of SM or GM, as far as conflicts need it, and the rules.
//
// Time is a counter that advances at each barrier and at each release of an atomic or a lock. It never goes back, so
// cells need no clearing: what is older than the launch, or for SM than the cluster, does not count. Whether an
// access of core w comes before what core c does now is a vector clock: seen[w] is the time up to which c has
// synchronised with w (Flanagan and Freund: "FastTrack", PLDI 2009).
#pragma once

#include <cstdint>
#include <vector>

#include "../modules.h"
#include "xpu_sim/site.h"

namespace xpu_sim::rt::strict {

// Where an access came from, in 32 bits, so that shadow memory can afford it.

// A return address in the kernel's module, or the source line of a builtin.
using Origin = uint32_t;

class Origins {
 public:
  void launch_begins(const Module* module) { base_ = module ? module->base : 0; }

  Origin of(const void* pc) const { return static_cast<Origin>(reinterpret_cast<uintptr_t>(pc) - base_) & ~kSite; }
  Origin of(Site site);
  Location locate(Origin origin) const;

 private:
  static constexpr Origin kSite = 0x80000000u;
  uintptr_t base_ = 0;
  std::vector<Site> sites_;
  Origin recent_[64] = {};  // by a few bits of the line: most copies repeat
};

enum CellFlags : uint16_t {
  kCellDestination = 1,   // of a copy in flight
  kCellSource = 2,        // of a copy in flight
  kCellAsync = 4,         // written by a copy that no fence has followed
  kCellStored = 8,        // written by a store, not by a copy
  kCellAtomic = 16,       // written by storea
  kCellOtherRead = 32,    // read by an earlier cluster of this launch
  kCellParts = 64,        // see the cells of its parts instead
  kCellUnseen = 128       // written by a store that was not seen: by whom and when is not known
};

struct Cell {
  uint32_t wstamp, worigin, wfence;   // last write: when, where, and its core's count of fences then
  uint16_t wcore, flags;             // its core: cluster * 64 + core
  uint32_t rstamp, rorigin;           // last read
  uint64_t readers;                  // bit per core of the running cluster
};
static_assert(sizeof(Cell) == 32);

// The accessing core and its vector clock.
struct Access {
  uint32_t now, launch_start, cluster_start, full_barrier;
  const uint32_t* seen;              // per core of the cluster: see above
  const uint32_t* published;         // per core: its count of fences at its last synchronisation
  uint32_t fence;                    // the accessing core's own count
  uint16_t who;
  uint16_t flags;                    // of the cell after a write
  bool atomic;
  bool in_part;  // cores have synchronised otherwise than by barriers of all: `seen` has something
  bool fifo;  // the model's dma_fifo
  Origin origin;

  unsigned core() const { return who & 63u; }
};

enum class Conflict : uint8_t {
  none,
  uninitialised,
  read_in_flight,
  write_in_flight,
  race_with_write,
  race_with_read,
  unpublished,  // written by another core before a barrier, but not fenced before it
  cluster_with_write,
  cluster_with_read
};

inline bool ordered(const Access& a, uint32_t stamp, unsigned core) {
  return stamp < a.full_barrier || stamp < a.seen[core];
}

inline bool in_cluster(const Access& a, uint32_t stamp) { return stamp >= a.cluster_start; }
inline bool in_launch(const Access& a, uint32_t stamp) { return stamp >= a.launch_start; }

inline Conflict against_write(const Cell& c, const Access& a, bool writing) {
  if (!in_launch(a, c.wstamp) || (c.flags & kCellUnseen)) return Conflict::none;
  if (!in_cluster(a, c.wstamp)) return Conflict::cluster_with_write;
  if (c.wcore != a.who) {
    const unsigned writer = c.wcore & 63u;
    if (a.atomic && (c.flags & kCellAtomic)) return Conflict::none;
    if (!ordered(a, c.wstamp, writer)) return Conflict::race_with_write;
    return c.wfence >= a.published[writer] ? Conflict::unpublished : Conflict::none;
  }
  if ((c.flags & kCellAsync) && c.wfence == a.fence && !a.fifo) {
    return writing ? Conflict::write_in_flight : Conflict::read_in_flight;
  }
  return Conflict::none;
}

inline Conflict against_reads(const Cell& c, const Access& a) {
  if (!in_launch(a, c.rstamp)) return Conflict::none;
  if (!in_cluster(a, c.rstamp) || (c.flags & kCellOtherRead)) return Conflict::cluster_with_read;
  if (c.rstamp < a.full_barrier) return Conflict::none;
  for (uint64_t others = c.readers & ~(uint64_t{1} << a.core()); others; others &= others - 1) {
    if (!ordered(a, c.rstamp, static_cast<unsigned>(__builtin_ctzll(others)))) return Conflict::race_with_read;
  }
  return Conflict::none;
}

inline void refresh(Cell* c, const Access& a) {
  if (!in_launch(a, c->wstamp) && !in_launch(a, c->rstamp)) c->flags &= kCellParts;
}

// Nothing is new: this core has read it since anything else could have happened, or written it. Most accesses repeat.
inline bool read_again(const Cell& c, uint32_t now, uint16_t who) {
  return c.rstamp == now && (c.readers >> (who & 63u) & 1) && (c.wstamp != now || c.wcore == who) &&
         !(c.flags & (kCellDestination | kCellParts));
}
inline bool written_again(const Cell& c, uint32_t now, uint16_t who, uint32_t fence) {
  return c.wstamp == now && c.wcore == who && c.wfence == fence && (c.flags & kCellStored) &&
         !(c.flags & (kCellDestination | kCellSource | kCellParts)) &&
         (c.rstamp != now || !(c.readers & ~(uint64_t{1} << (who & 63u))));
}

// An access to SM where cores have synchronised by barriers of all only, with what decides about most of them.
struct PlainAccess {
  uint32_t now, cluster_start, full_barrier, fence;
  const uint32_t* published;
  uint16_t who;
  Origin origin;

  uint64_t me() const { return uint64_t{1} << (who & 63u); }
};

// By this core, or before the last barrier and fenced; in neither case is a copy in flight involved.
inline bool write_is_over(const Cell& c, const PlainAccess& a) {
  return c.wcore == a.who || (c.wstamp < a.full_barrier && c.wfence < a.published[c.wcore & 63u]);
}

// read_cell, if it is a good access of the usual kind; else nothing is done.
inline bool plain_read(Cell* c, const PlainAccess& a) {
  if (c->flags & (kCellDestination | kCellAsync | kCellParts | kCellUnseen)) return false;
  if (c->wstamp < a.cluster_start || !write_is_over(*c, a)) return false;
  c->readers = (c->rstamp < a.full_barrier ? 0 : c->readers) | a.me();
  c->rstamp = a.now;
  c->rorigin = a.origin;
  return true;
}

// check_write and record_write of a store, likewise.
inline bool plain_write(Cell* c, const PlainAccess& a) {
  if (c->flags & (kCellDestination | kCellSource | kCellAsync | kCellParts | kCellUnseen)) return false;
  if (c->wstamp >= a.cluster_start && !write_is_over(*c, a)) return false;
  if (c->rstamp >= a.full_barrier && (c->readers & ~a.me())) return false;
  c->wstamp = a.now;
  c->worigin = a.origin;
  c->wfence = a.fence;
  c->wcore = a.who;
  c->flags = kCellStored;
  return true;
}

inline Conflict read_cell(Cell* c, const Access& a) {
  refresh(c, a);
  const uint64_t me = uint64_t{1} << a.core();
  Conflict k = Conflict::none;
  if (c->flags & kCellDestination) {
    k = Conflict::read_in_flight;
  } else {
    k = against_write(*c, a, false);
  }
  if (!in_cluster(a, c->rstamp)) {
    if (in_launch(a, c->rstamp)) c->flags |= kCellOtherRead;
    c->readers = me;
  } else if (c->rstamp < a.full_barrier) {
    c->readers = me;
  } else {
    if (a.in_part &&
        c->rstamp != a.now) {  // those that came before for certain are forgotten: rstamp is the latest reader's only
      for (uint64_t rest = c->readers; rest; rest &= rest - 1) {
        if (ordered(a, c->rstamp, static_cast<unsigned>(__builtin_ctzll(rest)))) c->readers &= ~(rest & -rest);
      }
    }
    c->readers |= me;
  }
  c->rstamp = a.now;
  c->rorigin = a.origin;
  return k;
}

// Read, though no write was seen: since the cluster began there was one, of which nothing can be said.
inline void written_unseen(Cell* c, const Access& a) {
  c->wstamp = a.cluster_start;
  c->wfence = 0;
  c->wcore = a.who;
  c->flags = static_cast<uint16_t>((c->flags & ~(kCellAsync | kCellStored | kCellAtomic)) | kCellUnseen);
}

// What a write would conflict with; record_write then makes it the last one.
inline Conflict check_write(Cell* c, const Access& a) {
  refresh(c, a);
  if (c->flags & (kCellDestination | kCellSource)) return Conflict::write_in_flight;
  const Conflict k = against_write(*c, a, true);
  return k != Conflict::none ? k : against_reads(*c, a);
}

inline void record_write(Cell* c, const Access& a) {
  c->wstamp = a.now;
  c->worigin = a.origin;
  c->wfence = a.fence;
  c->wcore = a.who;
  c->flags = static_cast<uint16_t>((c->flags & (kCellParts | kCellOtherRead)) | a.flags);
}

// Read, or written after it was read, by one core of the launch only: read_cell, or check_write and record_write, of
// what most of GM sees. False: nothing is done.
inline bool first_read(Cell* c, const Access& a) {
  if (in_launch(a, c->wstamp) || in_launch(a, c->rstamp)) return false;
  c->flags &= kCellParts;
  c->readers = uint64_t{1} << a.core();
  c->rstamp = a.now;
  c->rorigin = a.origin;
  return true;
}
inline bool first_write(Cell* c, const Access& a) {
  if (in_launch(a, c->wstamp)) return false;
  if (in_launch(a, c->rstamp)) {
    if (!in_cluster(a, c->rstamp) || (c->readers & ~(uint64_t{1} << a.core()))) return false;
    if (c->flags & (kCellOtherRead | kCellDestination | kCellSource)) return false;
  } else {
    c->flags &= kCellParts;
  }
  record_write(c, a);
  return true;
}

}  // namespace xpu_sim::rt::strict
