// Counters of data moved by kernels, to rank versions of a kernel; not times.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace xpu_sim {

enum Direction { gm2lm, lm2gm, gm2sm, sm2gm, gm2gsm, gsm2gm, directions };
const char* direction_name(int direction);

struct Counters {
  uint64_t dma_ops[directions] = {};
  uint64_t dma_bytes[directions] = {};
  uint64_t gm_lines = 0;          // 64-byte lines that copies touched, counted per copy
  uint64_t partial_lines = 0;     // of those, written in part only
  uint64_t scalar_gm = 0;         // loads and stores of GM without a copy; strict build only
  uint64_t fences = 0;
  uint64_t barriers = 0;          // per cluster, not per core
  uint64_t max_core_dma_bytes = 0;
  uint64_t max_core_accesses = 0; // loads and stores of the busiest core; strict build only
  uint64_t lm_high = 0;           // most LM in use, in bytes, of a core
  uint64_t sm_bytes = 0;          // SM that the kernel declares
};

// All launches of one kernel: counters are sums, except for maxima and sm_bytes.
struct KernelReport {
  std::string kernel;
  uint64_t launches = 0;
  int clusters = 0, cores = 0;    // of the last launch
  Counters counters;
};

// Of this thread's last launch.
const Counters& last_counters();
// By kernel, in order of first launch, since the start or the last reset.
std::vector<KernelReport> report();
void reset_report();

// Called after each launch with its own counters, by the thread that launched, so by several at once if several launch;
// nullptr (the default): nobody.
void on_launch(void (*listener)(const KernelReport&));

std::string to_text(const std::vector<KernelReport>& report);
std::string to_json(const std::vector<KernelReport>& report);

}  // namespace xpu_sim
