#include "suppressions.h"

#include <fnmatch.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace xpu_sim {

namespace {

bool matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0 || fnmatch(("*/" + pattern).c_str(), name.c_str(), 0) == 0;
}

bool is_at(const Location& place, const std::string& pattern) {
  return matches(pattern, place.file) || matches(pattern, place.file + ":" + std::to_string(place.line));
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
      return entry.place + ": expected a check, a place and a reason, got '" + line + "'";
    }
    entries_.push_back(std::move(entry));
  }
  return "";
}

bool Suppressions::hold(const Finding& finding) {
  bool held = false;
  for (Entry& entry : entries_) {
    if (!matches(entry.check, finding.check)) continue;
    const auto here = [&entry](const Location& place) { return is_at(place, entry.where); };
    if (!here(finding.at) && !std::any_of(finding.inside.begin(), finding.inside.end(), here)) continue;
    held = entry.used = true;
  }
  return held;
}

std::vector<std::string> Suppressions::stale() const {
  std::vector<std::string> all;
  for (const Entry& entry : entries_) {
    if (!entry.used) all.push_back(entry.place + ": " + entry.check + " " + entry.where);
  }
  return all;
}

}  // namespace xpu_sim
