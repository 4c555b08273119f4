#include "narrow.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "../report.h"
#include "state.h"

namespace xpu_sim::rt::strict {

void NarrowStores::clear() {
  stores_.clear();
  elements_.clear();
}

size_t NarrowStores::number_of(At at) const {
  const auto same = [at](const Store& s) { return s.at == at; };
  return static_cast<size_t>(std::find_if(stores_.begin(), stores_.end(), same) - stores_.begin());
}

void NarrowStores::add(const Region& region, uintptr_t element, uintptr_t begin, uintptr_t end, size_t origin) {
  Element& e = elements_.try_emplace(region.begin + element, Element{region.element, 0, origin}).first->second;
  for (unsigned i = 0; i < region.element; ++i) {
    if (element + i >= begin && element + i < end) e.written |= 1u << i;
  }
}

std::vector<Finding> NarrowStores::take() {
  std::vector<bool> narrow(stores_.size());
  for (const auto& [address, e] : elements_) {
    if (e.written != (1u << e.bytes) - 1) narrow[e.origin] = true;
  }
  std::vector<Finding> all;
  for (size_t i = 0; i < stores_.size(); ++i) {
    if (narrow[i]) all.push_back(std::move(stores_[i].finding));
  }
  clear();
  return all;
}

// Elements of LM and SM that are read as a whole, and were written in part: 4 of the 8 bytes of an int64_t.
//
// The debug information has a variable's elements. A store that is narrower than one says little: a buffer is often
// used as several types. It matters when the element is then read as what it is. Only a store of its first
// bytes counts: one of others, or of several pieces, packs.

namespace {

uint8_t* shadow_of(State& state, const Core& core, const char* p) {
  const size_t offset = static_cast<size_t>(p - core.worker->sm());
  return offset < core.worker->sm_bytes() ? state.sm_objects.widths(offset) : LmShadow::of(p);
}

// The bytes at its beginning that one store wrote, after a wider one wrote the rest. 0: it was not so.
size_t narrow_bytes(const uint8_t* shadow, const Scalar& s) {
  const size_t first = width_of(shadow[0]);
  if (first >= s.bytes || s.begin % s.bytes != 0 || !(all_bits(shadow, s.bytes) & kWritten)) return 0;
  const size_t rest = width_of(shadow[first]);
  return rest > first && !mixed_widths(shadow + first, s.bytes - first) ? first : 0;
}

// Where that store was, as far as it is known.
Location origin_of(State& state, const Core& core, const char* p) {
  const size_t offset = static_cast<size_t>(p - core.worker->sm());
  if (offset < core.worker->sm_bytes()) {
    const Cell* const word = state.sm.words(p, 4);
    return word && !(word->flags & kCellParts) ? state.origins.locate(word->worigin) : Location();
  }
  const At* const at = state.narrow_writes.find(p);
  if (!at) return {};
  return at->pc ? locate(static_cast<const char*>(at->pc) - 1) : Location{at->site.file, at->site.line, ""};
}

int64_t read_integer(uintptr_t at, size_t bytes, bool has_sign) {
  uint64_t value = 0;
  std::memcpy(&value, reinterpret_cast<const void*>(at), bytes);
  const unsigned unused = static_cast<unsigned>(64 - 8 * bytes);
  return has_sign ? static_cast<int64_t>(value << unused) >> unused : static_cast<int64_t>(value);
}

// What the debug information, or else the pointer that a copy was given, says that the source is made of.
Scalar source_scalar(const Core& core, const char* p, const char* source, const void* pc) {
  const Scalar s = scalar_at(core, p, pc);
  if (s.kind != Scalar::none || core.source_element == 0) return s;
  const size_t bytes = static_cast<size_t>(std::abs(core.source_element));
  const size_t offset = static_cast<size_t>(p - source) / bytes * bytes;
  return {core.source_element < 0 ? Scalar::integer : Scalar::natural, reinterpret_cast<uintptr_t>(source) + offset,
          bytes, false};
}

void found(State& state, Core& core, const Scalar& s, size_t narrow, At at) {
  const char* const p = reinterpret_cast<const char*>(s.begin);
  const bool has_sign = s.kind == Scalar::integer;
  const long long stored = read_integer(s.begin, narrow, has_sign), is = read_integer(s.begin, s.bytes, has_sign);
  const bool same = s.kind != Scalar::other && stored == is;
  if (same && !has_sign) return;
  report_once(Check::narrow_store, core, at, [&] {
    std::string message =
        text("read of %zu bytes; the last write filled only %zu of them, the rest is older", s.bytes, narrow);
    if (same) message += ", but fits the value by chance";
    if (has_sign && !same) message += text(": %lld became %lld", stored, is);
    Finding f = finding_at(Check::narrow_store, core, at, message, p);
    if (same) f.severity = Severity::notice;
    const Location written = origin_of(state, core, p);
    if (written.line) f.other = text("write of %zu bytes at %s:%d", narrow, written.file.c_str(), written.line);
    return f;
  }, same ? Severity::notice : Severity::defect);
}

}  // namespace

void narrow_load(Core& core, const char* p, size_t bytes, const void* pc, At at) {
  if (core.worker->repeats) return;
  const WatchdogHold looking(&core.worker->watch);
  State& state = *state_of(core);
  const char *const source = p, *const end = p + bytes;
  while (p < end) {
    const size_t rest = std::min<size_t>(8 - reinterpret_cast<uintptr_t>(p) % 8, static_cast<size_t>(end - p));
    if (!mixed_widths(shadow_of(state, core, p), rest)) {
      p += rest;
      continue;
    }
    const Scalar s = source_scalar(core, p, source, pc);
    const char* const begin = reinterpret_cast<const char*>(s.begin);
    const bool whole = s.kind != Scalar::none && s.bytes <= 8 && begin >= p && begin + s.bytes <= end;
    uint8_t* const shadow = shadow_of(state, core, p);
    const size_t done = whole ? s.bytes : rest;
    if (whole && s.bytes > 1) {
      if (const size_t narrow = narrow_bytes(shadow, s)) found(state, core, s, narrow, at);
    }
    // Reported, or right; the next read need not look again.
    clear_bits(shadow, done, kWidths);
    p += done;
  }
}

}  // namespace xpu_sim::rt::strict
