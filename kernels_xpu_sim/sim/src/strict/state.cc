#include "state.h"

#include "../report.h"

namespace xpu_sim::rt::strict {

State::Atomic& State::atomic(const void* address) {
  atomic_of.need(worker.sm_bytes() / 4 + 1);
  uint32_t& i = atomic_of[static_cast<size_t>(static_cast<const char*>(address) - worker.sm()) / 4];
  if (i >= atomics.size() || atomics[i].address != address) {
    i = static_cast<uint32_t>(atomics.size());
    atomics.push_back({address, {}});
  }
  return atomics[i];
}

uint32_t State::advance(int core) {
  for (int space = 0; space < spaces; ++space) published[space][core] = fences[space][core];
  return ++now;
}

std::string location_text(const Location& where) {
  std::string s = where.file.empty() ? "an unknown line" : where.file + ":" + std::to_string(where.line);
  if (where.file.empty() && !where.function.empty()) s += " of " + where.function;
  return s;
}

std::string location_text(const void* pc) { return location_text(locate(static_cast<const char*>(pc) - 1)); }

std::string writer_of(const State& state, const Cell& cell) {
  return text("write by core %d of cluster %d at ", cell.wcore % kMaxCores, cell.wcore / kMaxCores) +
         location_text(state.origins.locate(cell.worigin));
}

namespace {

struct Words {
  std::string message, other, order;
  const char* decides = nullptr;  // the flag of the model with which it would be right
};

Words words_for(State& state, const Core& core, Conflict conflict, const Cell& cell, const char* address, bool write) {
  Words w;
  if (conflict == Conflict::read_in_flight || conflict == Conflict::write_in_flight) {
    const InFlight* const copy = copy_in_flight(state, address, 1);
    w.decides = copy ? copy->decides : "dma_fifo";  // in GM, after an earlier copy of the core's own
  } else if (conflict == Conflict::unpublished) {
    const bool by_copy =
        state.gm.region(reinterpret_cast<uintptr_t>(address)) && !(cell.flags & (kCellStored | kCellAsync));
    w.decides = by_copy ? "sync_store_is_visible" : "barrier_is_fence";
  }
  const char* const kind = write ? "write" : "read";
  const std::string writer = writer_of(state, cell);
  const auto reader = [&](bool here) {
    std::string s = "read by ";
    const uint64_t others = cell.readers & ~(uint64_t{1} << core.id);
    s += here && others ? text("core %d", __builtin_ctzll(others)) : std::string("another core");
    s += here ? text(" of cluster %d at ", core.cluster) : std::string(" of an earlier cluster, such as at ");
    return s + location_text(state.origins.locate(cell.rorigin));
  };
  switch (conflict) {
    case Conflict::uninitialised: w.message = "read of SM that nothing has written in this cluster"; break;
    case Conflict::read_in_flight:
      w.message = "read of data that a copy in flight has yet to write; its issuer must fence first";
      w.other = cell.wstamp >= state.launch_start ? writer : "";
      break;
    case Conflict::write_in_flight:
      w.message = "write to memory that a copy in flight uses; its issuer must fence first";
      w.other = cell.wstamp >= state.launch_start ? writer : "";
      break;
    case Conflict::race_with_write:
      w.message = std::string(kind) + " of data that another core writes, without a barrier between them";
      w.other = writer;
      break;
    case Conflict::race_with_read:
      w.message = "write to data that another core reads, without a barrier between them";
      w.other = reader(true);
      break;
    case Conflict::unpublished:
      w.message = std::string(kind) + " of data that another core wrote before the barrier, but did not fence";
      w.other = writer;
      w.order = "this " + std::string(kind) + " happens before that write arrives; the barrier does not wait for it";
      break;
    case Conflict::cluster_with_write:
      w.message =
          std::string(kind) + " of data that another cluster writes in this launch; clusters cannot synchronise";
      w.other = writer;
      break;
    case Conflict::cluster_with_read:
      w.message = "write to data that another cluster reads in this launch; clusters cannot synchronise";
      w.other = reader(false);
      break;
    case Conflict::none: break;
  }
  return w;
}

}  // namespace

const InFlight* copy_in_flight(const State& state, const char* address, size_t bytes) {
  for (const auto& copies : state.in_flight) {
    for (const InFlight& f : copies) {
      if (address < f.local() + f.copy.bytes && f.local() < address + bytes) return &f;
    }
  }
  return nullptr;
}

Check check_for(Conflict conflict) {
  switch (conflict) {
    case Conflict::uninitialised: return Check::uninitialised_read;
    case Conflict::read_in_flight: return Check::read_in_flight;
    case Conflict::write_in_flight: return Check::write_in_flight;
    case Conflict::unpublished: return Check::missing_fence;
    case Conflict::cluster_with_write:
    case Conflict::cluster_with_read: return Check::cross_cluster_conflict;
    default: return Check::race;
  }
}

Finding narrow_finding(Finding finding, const Core& core, uintptr_t address, size_t bytes, unsigned element) {
  finding.message = text("write of %zu bytes to elements of %u: it fills one only in part, and nothing fills the rest",
                         bytes, element);
  describe(&finding, core, reinterpret_cast<const void*>(address));
  return finding;
}

Finding conflict_finding(State& state, Core& core, Conflict conflict, const Cell& cell, const char* address, bool write,
                         At at, const std::string& copy) {
  const Words w = words_for(state, core, conflict, cell, address, write);
  const std::string message = copy.empty() ? w.message : copy + ": " + w.message;
  Finding f = finding_at(check_for(conflict), core, at, message, address);
  f.other = w.other;
  f.order = w.order;
  return w.decides ? depending(std::move(f), w.decides) : f;
}

}  // namespace xpu_sim::rt::strict
