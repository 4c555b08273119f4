#include "report.h"

#include <algorithm>
#include <mutex>

#include "forks.h"
#include "json.h"

namespace xpu_sim {

namespace {

thread_local Counters last;

struct Reports {
  std::vector<const rt::KernelInfo*> kernels;
  std::vector<KernelReport> reports;
  void (*listener)(const KernelReport&) = nullptr;
};

Reports& reports() {
  static Reports* const r = new Reports;
  return *r;
}

constexpr const char* kDirections[directions] = {"GM2LM", "LM2GM", "GM2SM", "SM2GM", "GM2GSM", "GSM2GM"};

}  // namespace

namespace rt {

void merge(Counters* into, const Counters& from) {
  for (int d = 0; d < directions; ++d) {
    into->dma_ops[d] += from.dma_ops[d];
    into->dma_bytes[d] += from.dma_bytes[d];
  }
  into->gm_lines += from.gm_lines;
  into->partial_lines += from.partial_lines;
  into->scalar_gm += from.scalar_gm;
  into->fences += from.fences;
  into->barriers += from.barriers;
  into->max_core_dma_bytes = std::max(into->max_core_dma_bytes, from.max_core_dma_bytes);
  into->max_core_accesses = std::max(into->max_core_accesses, from.max_core_accesses);
  into->lm_high = std::max(into->lm_high, from.lm_high);
  into->sm_bytes = std::max(into->sm_bytes, from.sm_bytes);
}

void record(const KernelInfo& kernel, int clusters, int cores, const Counters& counters) {
  last = counters;
  std::unique_lock<std::mutex> lock(rt::lock_of(rt::Shared::reports));
  Reports& r = reports();
  const size_t i = static_cast<size_t>(std::find(r.kernels.begin(), r.kernels.end(), &kernel) - r.kernels.begin());
  if (i == r.kernels.size()) {
    r.kernels.push_back(&kernel);
    r.reports.emplace_back().kernel = kernel.name;
  }
  KernelReport& report = r.reports[i];
  ++report.launches;
  report.clusters = clusters;
  report.cores = cores;
  merge(&report.counters, counters);
  void (*const listener)(const KernelReport&) = r.listener;
  lock.unlock();
  if (listener) listener({kernel.name, 1, clusters, cores, counters});
}

}  // namespace rt

const char* direction_name(int direction) { return kDirections[direction]; }

const Counters& last_counters() { return last; }

std::vector<KernelReport> report() {
  const std::lock_guard<std::mutex> lock(rt::lock_of(rt::Shared::reports));
  Reports& r = reports();
  return r.reports;
}

void reset_report() {
  const std::lock_guard<std::mutex> lock(rt::lock_of(rt::Shared::reports));
  Reports& r = reports();
  r.kernels.clear();
  r.reports.clear();
}

void on_launch(void (*listener)(const KernelReport&)) {
  const std::lock_guard<std::mutex> lock(rt::lock_of(rt::Shared::reports));
  Reports& r = reports();
  r.listener = listener;
}

std::string to_text(const std::vector<KernelReport>& reports) {
  std::string s;
  const auto line = [&s](const char* name, uint64_t value) {
    if (value) s += std::string("  ") + name + ": " + std::to_string(value) + "\n";
  };
  for (const KernelReport& r : reports) {
    const Counters& c = r.counters;
    s += r.kernel + ": " + std::to_string(r.launches) + (r.launches == 1 ? " launch" : " launches") + ", last " +
         std::to_string(r.clusters) + " x " + std::to_string(r.cores) + "\n";
    for (int d = 0; d < directions; ++d) {
      if (c.dma_ops[d]) {
        s += std::string("  ") + kDirections[d] + ": " + std::to_string(c.dma_bytes[d]) + " bytes in " +
             std::to_string(c.dma_ops[d]) + " copies\n";
      }
    }
    line("64-byte lines of GM", c.gm_lines);
    line("lines written in part", c.partial_lines);
    line("scalar accesses to GM", c.scalar_gm);
    line("fences", c.fences);
    line("barriers", c.barriers);
    line("bytes copied by the busiest core", c.max_core_dma_bytes);
    line("accesses of the busiest core", c.max_core_accesses);
    line("most LM in use", c.lm_high);
    line("SM", c.sm_bytes);
  }
  return s;
}

std::string to_json(const std::vector<KernelReport>& reports) {
  std::string all;
  for (const KernelReport& r : reports) {
    const Counters& c = r.counters;
    Json copies;
    for (int d = 0; d < directions; ++d) {
      copies.add_raw(kDirections[d], Json().add("ops", c.dma_ops[d]).add("bytes", c.dma_bytes[d]).text());
    }
    Json one;
    one.add("kernel", r.kernel).add("launches", r.launches).add("clusters", r.clusters).add("cores", r.cores);
    one.add_raw("dma", copies.text()).add("gm_lines", c.gm_lines).add("partial_lines", c.partial_lines);
    one.add("scalar_gm", c.scalar_gm).add("fences", c.fences).add("barriers", c.barriers);
    one.add("max_core_dma_bytes", c.max_core_dma_bytes).add("max_core_accesses", c.max_core_accesses);
    one.add("lm_high", c.lm_high).add("sm_bytes", c.sm_bytes);
    all += (all.empty() ? "" : ",\n  ") + one.text();
  }
  return all.empty() ? "[]" : "[\n  " + all + "\n]";
}

}  // namespace xpu_sim
