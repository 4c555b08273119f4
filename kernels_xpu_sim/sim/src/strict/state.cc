#include "state.h"

#include "../trap.h"

namespace xpu_sim::rt::strict {

Access State::access(const Core& core, Space space, Place place, uint16_t flags) const {
  Access a;
  a.now = now;
  a.launch_start = space == sm_space ? cluster_start : launch_start;  // SM starts anew with each cluster
  a.cluster_start = cluster_start;
  a.full_barrier = full_barrier;
  a.seen = seen[core.id];
  a.published = published[space];
  a.fence = fences[space][core.id];
  a.who = static_cast<uint16_t>(core.cluster * kMaxCores + core.id);
  a.flags = flags;
  a.atomic = (flags & kCellAtomic) != 0;
  a.fifo = core.launch->options->model.dma_fifo;
  a.place = place;
  return a;
}

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

namespace {

std::string place_text(const Location& where) {
  std::string s = where.file.empty() ? "an unknown line" : where.file + ":" + std::to_string(where.line);
  if (where.file.empty() && !where.function.empty()) s += " of " + where.function;
  return s;
}

}  // namespace

Finding conflict_finding(State& state, Core& core, Conflict conflict, const Cell& cell, const char* address, bool write,
                         Location at, Check* check) {
  const char* const kind = write ? "write" : "read";
  const std::string writer = text("write by core %d of cluster %d at ", cell.wcore % kMaxCores, cell.wcore / kMaxCores) +
                             place_text(state.places.locate(cell.wplace));
  const auto reader = [&](bool here) {
    std::string s = "read by ";
    const uint64_t others = cell.readers & ~(uint64_t{1} << core.id);
    s += here && others ? text("core %d", __builtin_ctzll(others)) : std::string("another core");
    s += here ? text(" of cluster %d at ", core.cluster) : std::string(" of an earlier cluster, such as at ");
    return s + place_text(state.places.locate(cell.rplace));
  };
  std::string message, other;
  switch (conflict) {
    case Conflict::uninitialised:
      *check = Check::uninitialised_read;
      message = "read of SM that nothing has written in this cluster";
      break;
    case Conflict::read_in_flight:
      *check = Check::read_in_flight;
      message = "read of what a copy in flight has yet to write; its issuer must fence first";
      other = cell.wstamp >= state.launch_start ? writer : "";
      break;
    case Conflict::write_in_flight:
      *check = Check::write_in_flight;
      message = "write to what a copy in flight uses; its issuer must fence first";
      other = cell.wstamp >= state.launch_start ? writer : "";
      break;
    case Conflict::race_with_write:
      *check = Check::race;
      message = std::string(kind) + " of what another core writes, without a barrier between";
      other = writer;
      break;
    case Conflict::race_with_read:
      *check = Check::race;
      message = "write to what another core reads, without a barrier between";
      other = reader(true);
      break;
    case Conflict::unpublished:
      *check = Check::missing_fence;
      message = std::string(kind) + " of what another core wrote before the barrier, but without a fence after its write";
      other = writer;
      break;
    case Conflict::cluster_with_write:
      *check = Check::cross_cluster_conflict;
      message = std::string(kind) + " of what another cluster writes in the same launch; clusters cannot synchronise";
      other = writer;
      break;
    case Conflict::cluster_with_read:
      *check = Check::cross_cluster_conflict;
      message = "write to what another cluster reads in the same launch; clusters cannot synchronise";
      other = reader(false);
      break;
    case Conflict::none:
      break;
  }
  Finding f = finding_at(*check, core, Site(), std::move(message));
  f.at = std::move(at);
  describe(&f, core, address);
  f.other = std::move(other);
  return f;
}

}  // namespace xpu_sim::rt::strict
