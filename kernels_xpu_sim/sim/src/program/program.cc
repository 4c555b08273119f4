// For programs, as opposed to libraries: findings are printed at once, and the most severe one gives the exit status
// of the process. It is 1 for a defect or an unused suppression, 3 if all findings depend on the model, else the
// program's own. Options come from the environment, since the arguments belong to the program:
//   XPU_SIM=seed=7,dma=random    options of all launches that have none of their own
//   XPU_SIM_SUPPRESSIONS=FILE    findings to pass over (class Suppressions)
//   XPU_SIM_PART=1               the program is one run of several: a suppression that it has no use for is no error
//   XPU_SIM_JSON=FILE            findings and counters as JSON at the end; - is the standard output
//   XPU_SIM_TRACE=FILE           a timeline for Perfetto or chrome://tracing at the end
//   XPU_SIM_REPORT=1             counters by kernel at the end, on the standard error; "launches": after each launch
#include <fnmatch.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "../forks.h"
#include "../json.h"
#include "xpu_sim/finding.h"
#include "xpu_sim/host.h"

namespace xpu_sim {

// Findings that were reviewed: a file with one line each, and a reason.
//
//   # check, where (a file, or file:line; * and ? as in a shell), why it is right
//   missing_fence  vendor/top_k.xpu:81  the wrapper launches one core
//   race           vendor/*.h           flags are only ever set to 1

class Suppressions {
 public:
  // Returns what is wrong with the file, or an empty string.
  std::string read(const std::string& path);

  // Is the finding among them?
  bool hold(const Finding& finding);

  // Those that have held no finding, in the order of the file, as "FILE:LINE: check where".
  std::vector<std::string> stale() const;

 private:
  struct Entry {
    std::string check, where, listed_at;  // `listed_at`: its own, in the file
    bool used;
  };
  std::vector<Entry> entries_;
};

namespace {

bool matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0 || fnmatch(("*/" + pattern).c_str(), name.c_str(), 0) == 0;
}

bool is_at(const Location& location, const std::string& pattern) {
  return matches(pattern, location.file) || matches(pattern, location.file + ":" + std::to_string(location.line));
}

}  // namespace

std::string Suppressions::read(const std::string& path) {
  std::ifstream in(path);
  if (!in) return "expected a file that can be read, got " + path;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    std::istringstream words(line);
    Entry entry{"", "", path + ":" + std::to_string(number), false};
    std::string reason;
    if (!(words >> entry.check) || entry.check[0] == '#') continue;
    if (!(words >> entry.where >> reason)) {
      return entry.listed_at + ": expected a check, a place and a reason, got '" + line + "'";
    }
    entries_.push_back(std::move(entry));
  }
  return "";
}

bool Suppressions::hold(const Finding& finding) {
  bool held = false;
  for (Entry& entry : entries_) {
    if (!matches(entry.check, finding.check)) continue;
    const auto here = [&entry](const Location& location) { return is_at(location, entry.where); };
    if (!here(finding.at) && !std::any_of(finding.inside.begin(), finding.inside.end(), here)) continue;
    held = entry.used = true;
  }
  return held;
}

std::vector<std::string> Suppressions::stale() const {
  std::vector<std::string> all;
  for (const Entry& entry : entries_) {
    if (!entry.used) all.push_back(entry.listed_at + ": " + entry.check + " " + entry.where);
  }
  return all;
}

}  // namespace xpu_sim

// Of a program that counts the lines that run (xpu cc --coverage): its counts are written at exit, or when asked to.
extern "C" __attribute__((weak)) void __gcov_dump();

namespace xpu_sim {

namespace {

// Of a program that launches for hours, the JSON document has the first launches.
constexpr size_t kMaxLaunches = 10000;

std::vector<Finding>* printed = nullptr;
std::vector<KernelReport>* launches = nullptr;
Suppressions* suppressions = nullptr;
bool print_launches = false;

// Of the two lists: the program's threads launch, and end, when they like. Outlives ~Program, as the lists do.
std::mutex& lists() { return rt::lock_of(rt::Shared::program); }

void note(const KernelReport& launch) {
  const std::lock_guard<std::mutex> lock(lists());
  if (print_launches) std::fputs(to_text({launch}).c_str(), stderr);
  if (launches->size() < kMaxLaunches) launches->push_back(launch);
}

void print(const Finding& finding) {
  const std::lock_guard<std::mutex> lock(lists());
  if (suppressions->hold(finding)) return;
  std::fputs(to_text(finding).c_str(), stderr);
  printed->push_back(finding);
}

// To the file that the variable names; - is the standard output.
void write(const char* variable, const std::string& document) {
  const char* const path = std::getenv(variable);
  std::FILE* const out = std::strcmp(path, "-") == 0 ? stdout : std::fopen(path, "w");
  if (!out) {
    std::fprintf(stderr, "xpu_sim: expected %s to name a file that can be written, got %s\n", variable, path);
    return;
  }
  std::fprintf(out, "%s\n", document.c_str());
  if (out != stdout) std::fclose(out);
}

// Says what was found, and gives the exit status; 0: the program's own.
int conclude() {
  size_t of[3] = {};
  for (const Finding& f : *printed) ++of[static_cast<int>(f.severity)];
  const size_t n = printed->size(), depends = of[static_cast<int>(Severity::depends)],
               notices = of[static_cast<int>(Severity::notice)], defects = n - depends - notices;
  if (n) std::fprintf(stderr, "xpu_sim: %zu %s", n, n == 1 ? "finding" : "findings");
  if (depends) std::fprintf(stderr, ", %zu depending on the model", depends);
  if (notices) std::fprintf(stderr, ", %zu of them notices", notices);
  if (n) std::fputs("\n", stderr);
  std::vector<std::string> stale = suppressions->stale();
  if (std::getenv("XPU_SIM_PART")) stale.clear();
  for (const std::string& entry : stale) {
    std::fprintf(stderr, "xpu_sim: %s: suppresses nothing; remove it\n", entry.c_str());
  }
  return defects || !stale.empty() ? 1 : depends ? 3 : 0;
}

void check(const char* variable, const std::string& wrong) {
  if (wrong.empty()) return;
  std::fprintf(stderr, "xpu_sim: %s: %s\n", variable, wrong.c_str());
  std::_Exit(2);
}

struct Program {
  Program() {
    printed = new std::vector<Finding>;
    suppressions = new Suppressions;
    if (const char* text = std::getenv("XPU_SIM")) check("XPU_SIM", parse_options(text, &defaults()));
    if (const char* path = std::getenv("XPU_SIM_SUPPRESSIONS")) check("XPU_SIM_SUPPRESSIONS", suppressions->read(path));
    on_finding(&print);
    if (std::getenv("XPU_SIM_TRACE")) start_trace();
    const char* const counters = std::getenv("XPU_SIM_REPORT");
    print_launches = counters && std::strcmp(counters, "launches") == 0;
    if (!print_launches && !std::getenv("XPU_SIM_JSON")) return;
    launches = new std::vector<KernelReport>;
    on_launch(&note);
  }

  // Runs after the destructors of the program's own globals.
  ~Program() {
    const std::lock_guard<std::mutex> lock(lists());
    if (std::getenv("XPU_SIM_JSON")) {
      // Taken ones have no later counts; those that were left have.
      std::vector<Finding> all = take_findings();
      const auto held = [](const Finding& f) { return suppressions->hold(f); };
      all.erase(std::remove_if(all.begin(), all.end(), held), all.end());
      if (all.size() < printed->size()) all = *printed;
      write("XPU_SIM_JSON", "{\"findings\": " + to_json(all) +
                                ",\n\"unused_suppressions\": " + json_array(suppressions->stale(), json_quoted) +
                                ",\n\"kernels\": " + to_json(report()) + ",\n\"launches\": " + to_json(*launches) +
                                "}");
    }
    if (std::getenv("XPU_SIM_TRACE")) write("XPU_SIM_TRACE", trace_json());
    if (std::getenv("XPU_SIM_REPORT") && !print_launches) std::fputs(to_text(report()).c_str(), stderr);
    const int status = conclude();
    if (status == 0) return;
    std::fflush(nullptr);
    if (__gcov_dump) __gcov_dump();
    _exit(status);
  }
};

// Before the program's own globals, which may launch kernels in their constructors.
__attribute__((init_priority(101))) Program program;

}  // namespace

}  // namespace xpu_sim
