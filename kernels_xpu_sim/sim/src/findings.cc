#include "findings.h"

#include <atomic>
#include <mutex>
#include <utility>

#include "json.h"

namespace xpu_sim {

namespace {

// A kernel that goes wrong everywhere need not fill memory.
constexpr size_t kMost = 1000;

struct Store {
  std::mutex mutex;
  std::vector<Finding> findings;
  void (*listener)(const Finding&) = nullptr;
};

Store& store() {
  static Store* const s = new Store;
  return *s;
}

std::atomic<uint64_t> made{0};

bool is_at(const Finding& f, const std::string& check, const std::string& kernel, const Location& at) {
  return f.at.line == at.line && f.check == check && f.kernel == kernel && f.at.file == at.file;
}

std::string line_of(const Location& where) {
  std::string s = where.file.empty() ? std::string("unknown line") : where.file;
  if (where.line > 0) s += ":" + std::to_string(where.line);
  return s;
}

std::string json_of(const Location& where) {
  return Json().add("file", where.file).add("line", where.line).add("function", where.function).text();
}

}  // namespace

namespace rt {

uint64_t findings_made() { return made.load(std::memory_order_relaxed); }

void keep(Finding finding) {
  made.fetch_add(1, std::memory_order_relaxed);
  Store& s = store();
  void (*listener)(const Finding&) = nullptr;
  {
    const std::lock_guard<std::mutex> lock(s.mutex);
    for (Finding& known : s.findings) {
      if (is_at(known, finding.check, finding.kernel, finding.at)) {
        ++known.count;
        return;
      }
    }
    if (s.findings.size() >= kMost) return;
    s.findings.push_back(finding);
    listener = s.listener;
  }
  if (listener) listener(finding);
}

void count_again(Check check, const std::string& kernel, const Location& at, long count) {
  Store& s = store();
  const std::lock_guard<std::mutex> lock(s.mutex);
  for (Finding& known : s.findings) {
    if (is_at(known, name_of(check), kernel, at)) known.count += count;
  }
}

}  // namespace rt

std::vector<Finding> take_findings() {
  Store& s = store();
  const std::lock_guard<std::mutex> lock(s.mutex);
  return std::exchange(s.findings, {});
}

size_t finding_count() {
  Store& s = store();
  const std::lock_guard<std::mutex> lock(s.mutex);
  return s.findings.size();
}

void on_finding(void (*listener)(const Finding&)) {
  Store& s = store();
  const std::lock_guard<std::mutex> lock(s.mutex);
  s.listener = listener;
}

// k.xpu:12: race: core 3 of cluster 0 in verify<float>: ...
//   object: SM counts + 12
std::string to_text(const Finding& f) {
  std::string s = f.at.file.empty() ? f.kernel : line_of(f.at);
  s += ": " + f.check + ": " + f.message + "\n  in " + f.kernel;
  if (f.core >= 0) s += ", cluster " + std::to_string(f.cluster) + ", core " + std::to_string(f.core);
  if (f.epoch > 0) s += ", after " + std::to_string(f.epoch) + (f.epoch == 1 ? " barrier" : " barriers");
  s += "\n";
  for (const Location& caller : f.callers) s += "  called at " + line_of(caller) + " (" + caller.function + ")\n";
  if (!f.space.empty()) {
    s += "  object: " + f.space + (f.object.empty() ? "" : " " + f.object);
    if (f.offset >= 0) {
      s +=
          f.space == "LM" ? ", " + std::to_string(f.offset) + " bytes below its top" : " + " + std::to_string(f.offset);
    }
    s += "\n";
  }
  if (!f.other.empty()) s += "  other access: " + f.other + "\n";
  if (!f.replay.empty()) s += "  replay with: " + f.replay + "\n";
  return s;
}

std::string to_json(const std::vector<Finding>& findings) {
  std::string all;
  for (const Finding& f : findings) {
    std::string callers;
    for (const Location& c : f.callers) callers += (callers.empty() ? "" : ", ") + json_of(c);
    Json one;
    one.add("check", f.check).add("message", f.message).add("kernel", f.kernel);
    one.add("cluster", f.cluster).add("core", f.core).add("epoch", f.epoch);
    one.add_raw("at", json_of(f.at)).add_raw("callers", "[" + callers + "]");
    one.add("space", f.space).add("object", f.object).add("offset", f.offset);
    one.add("other", f.other).add("replay", f.replay).add("count", f.count);
    all += (all.empty() ? "" : ",\n  ") + one.text();
  }
  return all.empty() ? "[]" : "[\n  " + all + "\n]";
}

}  // namespace xpu_sim
