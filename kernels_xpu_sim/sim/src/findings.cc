#include "findings.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "forks.h"
#include "json.h"
#include "trace.h"

namespace xpu_sim {

namespace {

// A kernel that goes wrong everywhere need not fill memory.
constexpr size_t kMost = 1000;

struct Store {
  std::vector<Finding> findings;
  void (*listener)(const Finding&) = nullptr;
};

Store& store() {
  static Store* const s = new Store;
  return *s;
}

std::atomic<uint64_t> made{0};

thread_local std::vector<Finding> of_last_launch;

// Of the same check at the same place, and as certain.
bool same(const Finding& a, const Finding& b) {
  return a.at.line == b.at.line && a.check == b.check && a.severity == b.severity && a.kernel == b.kernel &&
         a.at.file == b.at.file;
}

// False: it is counted, or there are too many.
bool add(std::vector<Finding>* all, const Finding& finding) {
  for (Finding& known : *all) {
    if (same(known, finding)) {
      ++known.count;
      return false;
    }
  }
  if (all->size() >= kMost) return false;
  all->push_back(finding);
  return true;
}

std::string line_of(const Location& where) {
  std::string s = where.file.empty() ? std::string("unknown line") : where.file;
  if (where.line > 0) s += ":" + std::to_string(where.line);
  return s;
}

std::string json_of(const Location& where) {
  return Json().add("file", where.file).add("line", where.line).add("function", where.function).text();
}

std::string json_of(const std::vector<Location>& all) {
  std::string list;
  for (const Location& one : all) list += (list.empty() ? "" : ", ") + json_of(one);
  return "[" + list + "]";
}

}  // namespace

namespace rt {

uint64_t findings_made() { return made.load(std::memory_order_relaxed); }

void keep(const Finding& finding, std::vector<Finding>* of_launch) {
  made.fetch_add(1, std::memory_order_relaxed);
  Store& s = store();
  void (*listener)(const Finding&) = nullptr;
  {
    const std::lock_guard<std::mutex> lock(lock_of(Shared::findings));
    add(of_launch, finding);
    if (add(&s.findings, finding)) listener = s.listener;
  }
  if (tracing()) trace_finding(finding);
  if (listener) listener(finding);
}

void count_again(const Finding& finding, long count, std::vector<Finding>* of_launch) {
  const std::lock_guard<std::mutex> lock(lock_of(Shared::findings));
  for (std::vector<Finding>* const all : {of_launch, &store().findings}) {
    for (Finding& known : *all) {
      if (same(known, finding)) known.count += count;
    }
  }
}

void launch_found(std::vector<Finding> findings) {
  if (!findings.empty() || !of_last_launch.empty()) of_last_launch = std::move(findings);
}

}  // namespace rt

std::vector<Finding> take_findings() {
  const std::lock_guard<std::mutex> lock(rt::lock_of(rt::Shared::findings));
  Store& s = store();
  return std::exchange(s.findings, {});
}

std::vector<Finding> take_last_findings() {
  std::vector<Finding> mine = std::exchange(of_last_launch, {});
  if (mine.empty()) return mine;
  const std::lock_guard<std::mutex> lock(rt::lock_of(rt::Shared::findings));
  std::vector<Finding>& all = store().findings;
  const auto is_mine = [&mine](const Finding& f) {
    return std::any_of(mine.begin(), mine.end(), [&f](const Finding& m) { return same(m, f); });
  };
  all.erase(std::remove_if(all.begin(), all.end(), is_mine), all.end());
  return mine;
}

size_t finding_count() {
  const std::lock_guard<std::mutex> lock(rt::lock_of(rt::Shared::findings));
  Store& s = store();
  return s.findings.size();
}

void on_finding(void (*listener)(const Finding&)) {
  const std::lock_guard<std::mutex> lock(rt::lock_of(rt::Shared::findings));
  Store& s = store();
  s.listener = listener;
}

const char* severity_name(Severity severity) {
  static constexpr const char* kNames[] = {"defect", "depends", "notice"};
  return kNames[static_cast<int>(severity)];
}

// k.xpu:12: race: core 3 of cluster 0 in verify<float>: ...
//   object: SM counts + 12
std::string to_text(const Finding& f) {
  std::string s = f.at.file.empty() ? f.kernel : line_of(f.at);
  s += ": " + f.check + ": " + f.message + "\n  in " + f.kernel;
  if (f.core >= 0) s += ", cluster " + std::to_string(f.cluster) + ", core " + std::to_string(f.core);
  if (f.epoch > 0) s += ", after " + std::to_string(f.epoch) + (f.epoch == 1 ? " barrier" : " barriers");
  s += "\n";
  if (f.severity == Severity::depends) s += "  depends on " + f.decides + "\n";
  if (f.severity == Severity::notice) s += "  a notice: right on every device\n";
  for (const Location& l : f.inside) s += "  inside " + line_of(l) + " (" + l.function + ")\n";
  for (const Location& caller : f.callers) s += "  called at " + line_of(caller) + " (" + caller.function + ")\n";
  if (!f.space.empty()) {
    s += "  object: " + f.space + (f.object.empty() ? "" : " " + f.object);
    if (f.offset >= 0) {
      s += f.space == "LM" && f.object.compare(0, 5, "stack") == 0
               ? ", " + std::to_string(f.offset) + " bytes below its top"
               : " + " + std::to_string(f.offset);
    }
    s += "\n";
  }
  if (!f.other.empty()) s += "  other access: " + f.other + "\n";
  if (!f.order.empty()) s += "  breaks if: " + f.order + "\n";
  if (!f.follows.empty()) s += "  may follow from: " + f.follows + "\n";
  if (!f.replay.empty()) s += "  replay with: " + f.replay + "\n";
  return s;
}

std::string to_json(const std::vector<Finding>& findings) {
  std::string all;
  for (const Finding& f : findings) {
    Json one;
    one.add("check", f.check).add("severity", severity_name(f.severity)).add("decides", f.decides);
    one.add("message", f.message).add("kernel", f.kernel);
    one.add("cluster", f.cluster).add("core", f.core).add("epoch", f.epoch);
    one.add_raw("at", json_of(f.at)).add_raw("callers", json_of(f.callers)).add_raw("inside", json_of(f.inside));
    one.add("space", f.space).add("object", f.object).add("offset", f.offset);
    one.add("other", f.other)
        .add("order", f.order)
        .add("follows", f.follows)
        .add("replay", f.replay)
        .add("count", f.count);
    all += (all.empty() ? "" : ",\n  ") + one.text();
  }
  return all.empty() ? "[]" : "[\n  " + all + "\n]";
}

}  // namespace xpu_sim
