// What the checks found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace xpu_sim {

// A place in a program, as far as it is known.
struct Location {
  std::string file;
  int line = 0;
  std::string function;
};

// How certainly the device would fail.
enum class Severity {
  defect,   // wrong under every reading of the device
  depends,  // wrong under some: Finding::decides names the flag of the model that decides
  notice    // right on every device, though the language does not promise it
};

struct Finding {
  std::string check;     // the hardware's name for the trap where it has one: "dma_overflow", "simd_unalign", ...
  std::string message;   // what was expected and what came
  Severity severity = Severity::defect;
  std::string decides;   // "model.barrier_is_fence"; empty but for Severity::depends
  std::string kernel;
  int cluster = -1, core = -1;
  long epoch = -1;       // barriers that this cluster had passed
  Location at;
  std::vector<Location> callers;
  std::vector<Location> inside;  // where in a header it happened, innermost first, when `at` is the line that called
  std::string space;     // "LM", "SM", "GM": where the object is
  std::string object;    // its name
  long long offset = -1; // bytes from its start; in a "stack" of LM, where no variable is known, from its top down
  std::string other;     // the other access, where two are involved
  std::string order;     // of the two accesses, which no fence rules out and which breaks the kernel
  std::string follows;   // from what was left out when it was wrong (Options::keep_going)
  std::string replay;    // options that give this run again
  long count = 1;        // how often it was seen at this place
};

// Findings since the last call, oldest first, and forgets them. Safe from any thread.
std::vector<Finding> take_findings();
// The same of this thread's last launch alone, whatever other threads find meanwhile.
std::vector<Finding> take_last_findings();
// Findings so far, without those taken.
size_t finding_count();

const char* severity_name(Severity severity);

std::string to_text(const Finding& finding);
std::string to_json(const std::vector<Finding>& findings);

// Called with each distinct finding when it is made, by the thread that made it, so by several at once if several
// launch; nullptr (the default) only collects.
void on_finding(void (*listener)(const Finding&));

}  // namespace xpu_sim
