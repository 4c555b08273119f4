// For programs, as opposed to libraries: findings are printed as they are made, and the process then ends with 1. Asked
// through the environment, since the program's own arguments are its own:
//   XPU_SIM=seed=7,dma=random    options of all launches that have none of their own
//   XPU_SIM_JSON=FILE            findings and counters as JSON at the end; - is the standard output
//   XPU_SIM_REPORT=1             counters by kernel at the end, on the standard error; "launches": after each launch
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "../forks.h"
#include "xpu_sim/host.h"

namespace xpu_sim {

namespace {

// Of a program that launches for hours, the JSON document has the first launches.
constexpr size_t kMostLaunches = 10000;

std::vector<Finding>* printed = nullptr;
std::vector<KernelReport>* launches = nullptr;
bool print_launches = false;

// Of the two lists: the program's threads launch, and end, when they like. Outlives ~Program, as the lists do.
std::mutex& lists() { return rt::lock_of(rt::Shared::program); }

void note(const KernelReport& launch) {
  const std::lock_guard<std::mutex> lock(lists());
  if (print_launches) std::fputs(to_text({launch}).c_str(), stderr);
  if (launches->size() < kMostLaunches) launches->push_back(launch);
}

void print(const Finding& finding) {
  const std::lock_guard<std::mutex> lock(lists());
  std::fputs(to_text(finding).c_str(), stderr);
  printed->push_back(finding);
}

void write_json(const char* path, const std::vector<Finding>& findings) {
  std::FILE* const out = std::strcmp(path, "-") == 0 ? stdout : std::fopen(path, "w");
  if (!out) {
    std::fprintf(stderr, "xpu_sim: expected XPU_SIM_JSON to name a file that can be written, got %s\n", path);
    return;
  }
  std::fprintf(out, "{\"findings\": %s,\n\"kernels\": %s,\n\"launches\": %s}\n", to_json(findings).c_str(),
               to_json(report()).c_str(), to_json(*launches).c_str());
  if (out != stdout) std::fclose(out);
}

struct Program {
  Program() {
    printed = new std::vector<Finding>;
    if (const char* text = std::getenv("XPU_SIM")) {
      const std::string wrong = parse_options(text, &defaults());
      if (!wrong.empty()) {
        std::fprintf(stderr, "xpu_sim: XPU_SIM: %s\n", wrong.c_str());
        std::_Exit(2);
      }
    }
    on_finding(&print);
    const char* const counters = std::getenv("XPU_SIM_REPORT");
    print_launches = counters && std::strcmp(counters, "launches") == 0;
    if (!print_launches && !std::getenv("XPU_SIM_JSON")) return;
    launches = new std::vector<KernelReport>;
    on_launch(&note);
  }

  // Runs after the destructors of the program's own globals.
  ~Program() {
    const std::lock_guard<std::mutex> lock(lists());
    if (const char* path = std::getenv("XPU_SIM_JSON")) {
      // Taken ones have no later counts; those that were left have.
      std::vector<Finding> all = take_findings();
      write_json(path, all.size() >= printed->size() ? all : *printed);
    }
    if (std::getenv("XPU_SIM_REPORT") && !print_launches) std::fputs(to_text(report()).c_str(), stderr);
    if (printed->empty()) return;
    const size_t n = printed->size();
    std::fprintf(stderr, "xpu_sim: %zu %s\n", n, n == 1 ? "finding" : "findings");
    std::fflush(nullptr);
    _exit(1);
  }
};

// Before the program's own globals, which may launch kernels in their constructors.
__attribute__((init_priority(101))) Program program;

}  // namespace

}  // namespace xpu_sim
