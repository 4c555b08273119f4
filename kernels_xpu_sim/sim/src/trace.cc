// The timeline. Cores run one after the other here, and at the same time on the device: so each has a clock of its own,
// which barriers bring together. A copy that was issued is in flight until the fence or the synchronous copy that
// guarantees it, whenever the policy does it.
#include "trace.h"

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "dma.h"
#include "forks.h"
#include "json.h"
#include "worker.h"

namespace xpu_sim::rt {

bool trace_is_on = false;

namespace {

constexpr size_t kMaxEvents = 1000000;
constexpr int kClusterTrack = 0;  // core i has track i + 1

struct Event {
  int launch, cluster, track;
  char phase;  // 'X': lasts; 'b' and 'e': of a copy in flight; 'i': a moment
  uint64_t begin, ticks;
  std::string name;
  Site site;
  uint64_t id = 0;  // of a copy in flight
  std::string more = {};
};

struct Flight {
  Copy copy;
  uint64_t id;
};

struct Clock {
  uint64_t now = 0, arrival = 0, accesses = 0, begin = 0;
  bool waits = false;
  std::vector<Flight> flights;
};

struct Trace {
  std::vector<Event> events;
  std::vector<std::string> kernels;  // by launch
  std::map<std::pair<int, int>, std::map<int, Clock>> clocks;  // by launch and cluster: of the cores
  std::map<std::pair<int, int>, int> cores;  // that each cluster had
  uint64_t base = 0;  // where the next launch begins
  uint64_t dropped = 0, flights = 0;

  void add(Event event) {
    if (events.size() < kMaxEvents) {
      events.push_back(std::move(event));
    } else {
      ++dropped;
    }
  }
  // With the core's loads and stores since the last look.
  Clock& clock(const Core& core) {
    Clock& c = clocks[{core.launch->traced, core.cluster}][core.id];
    c.now += core.accesses - c.accesses;
    c.accesses = core.accesses;
    return c;
  }
  void lasts(const Core& core, uint64_t begin, uint64_t ticks, std::string name, Site site, std::string more = {}) {
    add({core.launch->traced, core.cluster, core.id + 1, 'X', begin, ticks, std::move(name), site, 0, std::move(more)});
  }
  template <class F>
  void land(const Core& core, Clock* c, F landed) {
    const auto flying =
        std::stable_partition(c->flights.begin(), c->flights.end(), [&](const Flight& f) { return !landed(f.copy); });
    for (auto f = flying; f != c->flights.end(); ++f) {
      add({core.launch->traced, core.cluster, core.id + 1, 'e', c->now, 0, in_flight(f->copy), f->copy.site, f->id});
    }
    c->flights.erase(flying, c->flights.end());
  }
  static std::string in_flight(const Copy& c) {
    return std::string(direction_name(c.direction)) + " " + std::to_string(c.bytes) + " B";
  }
};

Trace* trace = nullptr;
std::mutex& guard() { return lock_of(Shared::trace); }

const char* fence_name(uint32_t mask) {
  constexpr const char* kNames[] = {"mfence(0)", "mfence_lm",    "mfence_sm",    "mfence_lm_sm",
                                    "mfence_gm", "mfence_lm_gm", "mfence_sm_gm", "mfence"};
  return kNames[mask & 7];
}

}  // namespace

void trace_launch_begins(Launch* launch) {
  const std::lock_guard<std::mutex> lock(guard());
  launch->traced = static_cast<int>(trace->kernels.size());
  trace->kernels.push_back(launch->kernel->name);
}

void trace_launch_ends(const Launch& launch) {
  const std::lock_guard<std::mutex> lock(guard());
  uint64_t end = trace->base;
  for (int cluster = 0; cluster < launch.clusters; ++cluster) {
    const auto found = trace->clocks.find({launch.traced, cluster});
    if (found == trace->clocks.end()) continue;
    uint64_t last = trace->base;
    for (const auto& [id, c] : found->second) last = std::max(last, c.now);
    // A launch that ended early leaves cores that wait, and copies in flight.
    for (const auto& [id, c] : found->second) {
      if (c.waits) trace->add({launch.traced, cluster, id + 1, 'X', c.arrival, last - c.arrival, "waits forever", {}});
      for (const Flight& f : c.flights) {
        trace->add({launch.traced, cluster, id + 1, 'e', last, 0, Trace::in_flight(f.copy), f.copy.site, f.id});
      }
    }
    trace->add({launch.traced, cluster, kClusterTrack, 'X', trace->base, last - trace->base, launch.kernel->name, {}});
    trace->cores[{launch.traced, cluster}] = launch.cores;
    end = std::max(end, last);
    trace->clocks.erase(found);
  }
  trace->base = end + 1;
}

void trace_core_begins(const Core& core) {
  const std::lock_guard<std::mutex> lock(guard());
  Clock& c = trace->clocks[{core.launch->traced, core.cluster}][core.id];
  c.now = c.begin = trace->base;
}

void trace_core_ends(const Core& core) {
  const std::lock_guard<std::mutex> lock(guard());
  Clock& c = trace->clock(core);
  ++c.now;
  trace->land(core, &c, [](const Copy&) { return true; });
  trace->lasts(core, c.begin, c.now - c.begin, "core " + std::to_string(core.id), {});
}

void trace_copy(const Core& core, const Copy& copy, bool sync) {
  const std::lock_guard<std::mutex> lock(guard());
  Clock& c = trace->clock(core);
  const uint64_t ticks = sync ? 1 + (copy.bytes + 63) / 64 : 1;
  const std::string name = direction_name(copy.direction);
  trace->lasts(core, c.now, ticks, sync ? name : name + "_ASYNC", copy.site, std::to_string(copy.bytes) + " bytes");
  c.now += ticks;
  if (!sync) {
    c.flights.push_back({copy, ++trace->flights});
    trace->add({core.launch->traced, core.cluster, core.id + 1, 'b', c.now, 0, Trace::in_flight(copy), copy.site,
                trace->flights});
    return;
  }
  const bool all = core.launch->options->model.sync_drains_all_kinds;
  trace->land(core, &c, [&](const Copy& other) { return all || other.direction == copy.direction; });
}

void trace_fence(const Core& core, uint32_t mask, Site site) {
  const std::lock_guard<std::mutex> lock(guard());
  Clock& c = trace->clock(core);
  trace->lasts(core, c.now++, 1, fence_name(mask), site);
  const Model& model = core.launch->options->model;
  trace->land(core, &c, [&](const Copy& copy) { return completes(copy, mask, model); });
}

void trace_arrival(const Core& core) {
  const std::lock_guard<std::mutex> lock(guard());
  Clock& c = trace->clock(core);
  c.arrival = c.now;
  c.waits = true;
}

void trace_release(Worker& worker, uint64_t cores) {
  const std::lock_guard<std::mutex> lock(guard());
  uint64_t last = 0;
  const auto each = [&](auto f) {
    for (uint64_t rest = cores; rest; rest &= rest - 1) {
      const Core& core = worker.core(__builtin_ctzll(rest));
      f(core, trace->clock(core));
    }
  };
  each([&last](const Core&, const Clock& c) { last = std::max(last, c.now); });
  each([last](const Core& core, Clock& c) {
    trace->lasts(core, c.arrival, last + 1 - c.arrival, "barrier", core.last);
    c.now = last + 1;
    c.waits = false;
  });
}

void trace_finding(const Finding& finding) {
  const Core& core = *current();
  if (!core.worker || !core.launch) return;
  const std::lock_guard<std::mutex> lock(guard());
  const Clock& c = trace->clock(core);
  const std::string where = finding.at.file + ":" + std::to_string(finding.at.line) + ": ";
  trace->add(
      {core.launch->traced, core.cluster, core.id + 1, 'i', c.now, 0, finding.check, {}, 0, where + finding.message});
}

}  // namespace xpu_sim::rt

namespace xpu_sim {

using namespace rt;

void start_trace() {
  const std::lock_guard<std::mutex> lock(guard());
  if (!trace) trace = new Trace;  // never deleted, as it is read at exit
  trace_is_on = true;
}

std::string trace_json() {
  const std::lock_guard<std::mutex> lock(guard());
  std::string all;
  const auto add = [&all](const Json& one) { all += (all.empty() ? "\n" : ",\n") + one.text(); };
  const auto process = [](int launch, int cluster) { return launch * 256 + cluster + 1; };
  if (!trace) return "{\"traceEvents\": []}";
  for (const auto& [where, cores] : trace->cores) {
    const int launch = where.first, cluster = where.second;
    const auto name = [&](const char* what, int track, const std::string& text) {
      Json one;
      one.add("ph", "M").add("name", what).add("pid", process(launch, cluster));
      add(one.add("tid", track).add_raw("args", Json().add("name", text).text()));
    };
    const std::string kernel = trace->kernels[static_cast<size_t>(launch)];
    name("process_name", 0, "launch " + std::to_string(launch) + " " + kernel + ", cluster " + std::to_string(cluster));
    name("thread_name", kClusterTrack, "cluster " + std::to_string(cluster));
    for (int i = 0; i < cores; ++i) name("thread_name", i + 1, "core " + std::to_string(i));
  }
  for (const Event& e : trace->events) {
    Json one, args;
    one.add("ph", std::string(1, e.phase)).add("name", e.name).add("pid", process(e.launch, e.cluster));
    one.add("tid", e.track).add("ts", e.begin);
    if (e.phase == 'X') one.add("dur", e.ticks);
    if (e.phase == 'i') one.add("s", "t");
    if (e.id) one.add("cat", "copy").add("id", e.id);
    if (e.site.file) args.add("at", std::string(e.site.file) + ":" + std::to_string(e.site.line));
    if (!e.more.empty()) args.add("what", e.more);
    add(one.add_raw("args", args.text()));
  }
  return "{\"traceEvents\": [" + all +
         "\n],\n\"otherData\": " + Json().add("unit", "ticks, not time").add("dropped", trace->dropped).text() + "}";
}

}  // namespace xpu_sim
