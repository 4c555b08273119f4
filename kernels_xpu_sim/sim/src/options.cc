#include "xpu_sim/options.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <type_traits>

namespace xpu_sim {

namespace {

// Calls f(name, member) for every option that text can give.
template <class O, class F>
void each_option(O& o, F f) {
  f("seed", o.seed);
  f("dma", o.dma);
  f("workers", o.workers);
  f("llsc_failure", o.llsc_failure);
  f("watchdog_seconds", o.watchdog_seconds);
  f("poison", o.poison);
  f("profile", o.profile);
  f("keep_going", o.keep_going);
  f("halt_on_first", o.halt_on_first);
  f("model.exit_counts_as_arrival", o.model.exit_counts_as_arrival);
  f("model.barrier_is_fence", o.model.barrier_is_fence);
  f("model.dma_fifo", o.model.dma_fifo);
  f("model.sync_drains_all_kinds", o.model.sync_drains_all_kinds);
  f("model.lm_fence_frees_source", o.model.lm_fence_frees_source);
  f("model.sync_store_is_visible", o.model.sync_store_is_visible);
  f("model.store_to_dma_needs_fence", o.model.store_to_dma_needs_fence);
  f("model.differing_barriers_diverge", o.model.differing_barriers_diverge);
  f("model.nested_atomics_trap", o.model.nested_atomics_trap);
  f("model.scalar_gm_is_coherent", o.model.scalar_gm_is_coherent);
  f("model.equal_stores_conflict", o.model.equal_stores_conflict);
  f("model.masked_stores_write_zero", o.model.masked_stores_write_zero);
  f("model.gsm_stack_bytes", o.model.gsm_stack_bytes);
}

const char* const (&names_of(DmaPolicy))[3] {
  static constexpr const char* kNames[] = {"eager", "deferred", "random"};
  return kNames;
}
const char* const (&names_of(Profile))[3] {
  static constexpr const char* kNames[] = {"as_built", "portable", "production"};
  return kNames;
}

bool set(const std::string& text, bool* out) {
  *out = text == "1" || text == "true";
  return *out || text == "0" || text == "false";
}

double number(const char* text, char** end, double) { return std::strtod(text, end); }
long long number(const char* text, char** end, int) { return std::strtoll(text, end, 0); }
unsigned long long number(const char* text, char** end, uint64_t) { return std::strtoull(text, end, 0); }

template <class T>
bool set(const std::string& text, T* out) {
  if constexpr (std::is_enum_v<T>) {
    const auto& names = names_of(*out);
    const auto name = std::find(std::begin(names), std::end(names), text);
    if (name == std::end(names)) return false;
    *out = static_cast<T>(name - std::begin(names));
    return true;
  } else {
    char* end = nullptr;
    errno = 0;
    const auto value = number(text.c_str(), &end, *out);
    const bool fits = errno == 0 && static_cast<T>(value) == value && (std::is_signed_v<T> || text[0] != '-');
    if (text.empty() || *end || !fits) return false;
    *out = static_cast<T>(value);
    return true;
  }
}

std::string shown(bool on) { return on ? "1" : "0"; }
std::string shown(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", x);
  char brief[32];
  std::snprintf(brief, sizeof brief, "%g", x);
  return std::strtod(brief, nullptr) == x ? brief : text;
}
template <class T>
std::string shown(T x) {
  if constexpr (std::is_enum_v<T>) {
    return names_of(x)[static_cast<int>(x)];
  } else {
    return std::to_string(x);
  }
}

}  // namespace

Options& defaults() {
  static Options options;
  return options;
}

std::string parse_options(const std::string& text, Options* options) {
  for (size_t at = 0; at < text.size();) {
    size_t end = text.find(',', at);
    if (end == std::string::npos) end = text.size();
    const std::string part = text.substr(at, end - at);
    at = end + 1;
    if (part.empty()) continue;
    const size_t equals = part.find('=');
    const std::string name = part.substr(0, equals), value = equals == std::string::npos ? "" : part.substr(equals + 1);
    bool known = false, good = false;
    std::string names;
    each_option(*options, [&](const char* option, auto& member) {
      names += std::string(names.empty() ? "" : ", ") + option;
      if (name != option) return;
      known = true;
      good = set(value, &member);
    });
    if (!known) return "expected an option name (" + names + "), got '" + name + "'";
    if (!good) return "expected a value for " + name + ", got '" + value + "'";
  }
  return "";
}

std::string to_string(const Options& options) {
  Options initial;
  std::string all;
  // Both are walked in step, by position.
  std::string defaults[32];
  int n = 0, i = 0;
  each_option(initial, [&](const char*, const auto& member) { defaults[n++] = shown(member); });
  each_option(options, [&](const char* name, const auto& member) {
    const std::string value = shown(member);
    const bool changed = value != defaults[i++];
    if (changed || i == 1) all += (all.empty() ? "" : ",") + std::string(name) + "=" + value;
  });
  return all;
}

}  // namespace xpu_sim
