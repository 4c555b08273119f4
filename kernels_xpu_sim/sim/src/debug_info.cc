#include "debug_info.h"

#include <algorithm>

namespace xpu_sim::rt {

namespace {

// clang-format off
enum : uint64_t {  // DWARF 5, section 7.5
  kTagSubprogram = 0x2E, kTagInlined = 0x1D, kTagVariable = 0x34, kTagArray = 0x01, kTagSubrange = 0x21,
  kLocation = 0x02, kByteSize = 0x0B, kUpperBound = 0x2F, kType = 0x49,
  kName = 0x03, kStmtList = 0x10, kLowPc = 0x11, kHighPc = 0x12, kAbstractOrigin = 0x31, kArtificial = 0x34,
  kSpecification = 0x47,
  kRanges = 0x55, kCallFile = 0x58, kCallLine = 0x59, kLinkageName = 0x6E,
  kFormAddr = 0x01,
  kOpFrameBase = 0x91, kOpFramePointer = 0x76, kOpStackPointer = 0x77  // 2.5.1: fbreg, breg6, breg7, with an offset
};
// clang-format on

}  // namespace

struct DebugInfo::Unit {
  uint64_t offset = 0, end = 0, first = 0;  // in .debug_info; `first`: its first entry
  int version = 0;
  bool wide = false;
  uintptr_t base = 0;                       // what offsets in range lists are relative to
  std::vector<Abbreviation> abbreviations;
};

// The attributes that matter here; references are offsets in .debug_info.
struct DebugInfo::Entry {
  const Abbreviation* abbreviation = nullptr;  // nullptr: the end of a list of children
  uint64_t low = 0, high = 0, ranges = 0, origin = 0, specification = 0, line_program = 0;
  uint64_t type = 0, bytes = 0, upper_bound = 0;
  int call_file = 0, call_line = 0;
  bool has_low = false, high_is_length = false, has_ranges = false, artificial = false;
  bool has_upper_bound = false;
  std::string_view name, linkage_name, location;
};

DebugInfo::DebugInfo(const std::string& path)
    : elf_(path),
      info_(elf_.section(".debug_info")),
      abbreviations_(elf_.section(".debug_abbrev")),
      strings_(elf_.section(".debug_str")),
      line_strings_(elf_.section(".debug_line_str")),
      ranges_(elf_.section(".debug_ranges")),
      range_lists_(elf_.section(".debug_rnglists")) {}

// Calls f(reader behind it, unit, its entry) for the units that have code at the address, until it says true.
template <class F>
void DebugInfo::each_top_entry(uintptr_t address, F f) const {
  for (uint64_t offset = 0; offset < info_.size();) {
    Unit unit;
    const bool known = read_unit(offset, &unit);
    if (unit.end <= offset) break;
    offset = unit.end;
    if (!known) continue;
    DwarfReader in(info_.substr(unit.first, unit.end - unit.first));
    const Entry top = read_entry(&in, unit);
    if (!top.abbreviation) continue;
    unit.base = top.has_low ? top.low : 0;
    if ((top.has_low || top.has_ranges) && !covers(top, unit, address)) continue;
    if (f(&in, unit, top)) break;
  }
}

InlinedCalls DebugInfo::at(uintptr_t address) const {
  InlinedCalls found;
  each_top_entry(address, [&](DwarfReader* in, const Unit& unit, const Entry& top) {
    found.line_program = top.line_program;
    if (top.abbreviation->children) walk(in, unit, address, &found);
    return !found.function.empty();
  });
  std::reverse(found.calls.begin(), found.calls.end());
  return found;
}

std::string DebugInfo::variable(uintptr_t code, const StackFrame& frame, uintptr_t address, long long* offset) const {
  std::string found;
  each_top_entry(code, [&](DwarfReader* in, const Unit& unit, const Entry& top) {
    bool is_function = false;
    for (int depth = top.abbreviation->children ? 1 : 0; depth > 0 && !in->at_end() && !is_function;) {
      const Entry e = read_entry(in, unit);
      if (!e.abbreviation) {
        --depth;
        continue;
      }
      const bool has_code = e.has_low || e.has_ranges;
      is_function = e.abbreviation->tag == kTagSubprogram && has_code && covers(e, unit, code);
      if (!e.abbreviation->children) continue;
      if (is_function) {
        find_variable(in, unit, frame, address, &found, offset);
      } else if (e.abbreviation->tag == kTagSubprogram) {
        skip_children(in, unit);
      } else {
        ++depth;
      }
    }
    return is_function;
  });
  return found;
}

// Those of blocks and inlined functions too. Where they share memory, the outermost counts.
void DebugInfo::find_variable(DwarfReader* in, const Unit& unit, const StackFrame& frame, uintptr_t address,
                              std::string* found, long long* offset) const {
  for (int depth = 1; depth > 0 && !in->at_end() && found->empty();) {
    const Entry e = read_entry(in, unit);
    if (!e.abbreviation) {
      --depth;
      continue;
    }
    if (e.abbreviation->children) ++depth;
    if (e.abbreviation->tag != kTagVariable || e.location.empty()) continue;
    DwarfReader location(e.location);
    uintptr_t begin;
    switch (location.u8()) {
      case kOpFrameBase: begin = frame.frame_pointer + 16; break;  // the stack pointer before the function was called
      case kOpFramePointer: begin = frame.frame_pointer; break;
      case kOpStackPointer: begin = frame.stack_pointer; break;
      default: continue;
    }
    begin += static_cast<uintptr_t>(location.sleb());
    uint64_t type = e.type;
    std::string name(e.name);
    if (e.origin) {
      DwarfReader origin(info_.substr(e.origin, unit.end - e.origin));
      const Entry declared = read_entry(&origin, unit);
      type = type ? type : declared.type;
      name = name.empty() ? std::string(declared.name) : name;
    }
    if (!location.at_end() || name.empty() || address - begin >= bytes_of(type, unit)) continue;
    *found = name;
    *offset = static_cast<long long>(address - begin);
  }
}

// 0: not known when compiling.
uint64_t DebugInfo::bytes_of(uint64_t type, const Unit& unit, int depth) const {
  if (type < unit.first || type >= unit.end || depth > 8) return 0;
  DwarfReader in(info_.substr(type, unit.end - type));
  const Entry e = read_entry(&in, unit);
  if (!e.abbreviation) return 0;
  if (e.bytes) return e.bytes;
  uint64_t bytes = bytes_of(e.type, unit, depth + 1);
  if (e.abbreviation->tag != kTagArray || !e.abbreviation->children) return bytes;
  for (Entry bound = read_entry(&in, unit); bound.abbreviation; bound = read_entry(&in, unit)) {
    if (bound.abbreviation->tag == kTagSubrange) bytes *= bound.has_upper_bound ? bound.upper_bound + 1 : 0;
  }
  return bytes;
}

bool DebugInfo::read_unit(uint64_t offset, Unit* unit) const {
  DwarfReader in(info_.substr(offset));
  unit->offset = offset;
  uint64_t bytes = in.u32(), header = 4;
  unit->wide = bytes == 0xFFFFFFFFu;
  if (unit->wide) {
    bytes = in.u64();
    header = 12;
  }
  unit->end = std::min<uint64_t>(offset + header + bytes, info_.size());
  unit->version = in.u16();
  const uint64_t width = unit->wide ? 8 : 4;
  uint64_t abbreviations;
  if (unit->version == 5) {
    if (in.u8() != 1) return false;  // a compilation unit; no types, no skeletons
    in.skip(1);
    abbreviations = in.offset(unit->wide);
    unit->first = offset + header + 2 + 2 + width;
  } else if (unit->version == 4) {
    abbreviations = in.offset(unit->wide);
    unit->first = offset + header + 2 + width + 1;
  } else {
    return false;
  }
  read_abbreviations(abbreviations, &unit->abbreviations);
  return true;
}

void DebugInfo::read_abbreviations(uint64_t offset, std::vector<Abbreviation>* out) const {
  if (offset >= abbreviations_.size()) return;
  DwarfReader in(abbreviations_.substr(offset));
  for (uint64_t code = in.uleb(); code != 0; code = in.uleb()) {
    if (code > 1u << 20) return;
    if (code >= out->size()) out->resize(code + 1);
    Abbreviation& a = (*out)[code];
    a.tag = in.uleb();
    a.children = in.u8() != 0;
    for (;;) {
      Attribute attribute{in.uleb(), 0, 0};
      attribute.form = in.uleb();
      if (attribute.form == kFormImplicitConst) attribute.constant = in.sleb();
      if (attribute.name == 0 && attribute.form == 0) break;
      a.attributes.push_back(attribute);
    }
  }
}

DebugInfo::Entry DebugInfo::read_entry(DwarfReader* in, const Unit& unit) const {
  Entry e;
  const uint64_t code = in->uleb();
  if (code == 0 || code >= unit.abbreviations.size()) return e;
  e.abbreviation = &unit.abbreviations[code];
  for (const Attribute& a : e.abbreviation->attributes) {
    std::string_view text;
    uint64_t value = in->form(a.form, unit.wide, strings_, line_strings_, &text);
    if (a.form == kFormImplicitConst) value = static_cast<uint64_t>(a.constant);
    const bool local = a.form >= 0x11 && a.form <= 0x15;  // ref1 .. ref_udata: relative to the unit
    switch (a.name) {
        // clang-format off
      case kName: e.name = text; break;
      case kLinkageName: e.linkage_name = text; break;
      case kLowPc: e.low = value; e.has_low = true; break;
      case kHighPc: e.high = value; e.high_is_length = a.form != kFormAddr; break;
      case kRanges: e.ranges = value; e.has_ranges = true; break;
      case kAbstractOrigin: e.origin = value + (local ? unit.offset : 0); break;
      case kSpecification: e.specification = value + (local ? unit.offset : 0); break;
      case kArtificial: e.artificial = value != 0; break;
      case kStmtList: e.line_program = value; break;
      case kLocation: e.location = text; break;
      case kType: e.type = value + (local ? unit.offset : 0); break;
      case kByteSize: e.bytes = value; break;
      case kUpperBound: e.upper_bound = value; e.has_upper_bound = text.empty(); break;
      case kCallFile: e.call_file = static_cast<int>(value); break;
      case kCallLine: e.call_line = static_cast<int>(value); break;
      default: break;
        // clang-format on
    }
  }
  return e;
}

// Reads the children at the reader's place, and goes into those whose code has the address.
void DebugInfo::walk(DwarfReader* in, const Unit& unit, uintptr_t address, InlinedCalls* found) const {
  while (!in->at_end()) {
    const Entry e = read_entry(in, unit);
    if (!e.abbreviation) return;
    const uint64_t tag = e.abbreviation->tag;
    const bool has_code = e.has_low || e.has_ranges;
    const bool here = has_code && covers(e, unit, address);
    if (here && tag == kTagSubprogram) {
      bool artificial = false;
      found->function = e.name;
      name(e.origin ? e.origin : e.specification, unit, &found->function, &artificial);
    } else if (here && tag == kTagInlined) {
      found->calls.push_back({"", false, e.call_file, e.call_line});
      name(e.origin, unit, &found->calls.back().function, &found->calls.back().artificial);
    }
    if (!e.abbreviation->children) continue;
    // Blocks and namespaces have no code, or one of their own that is no function: look inside all the same.
    if (here || (!has_code && tag != kTagSubprogram)) {
      walk(in, unit, address, found);
    } else {
      skip_children(in, unit);
    }
  }
}

void DebugInfo::skip_children(DwarfReader* in, const Unit& unit) const {
  for (int depth = 1; depth > 0 && !in->at_end();) {
    const Entry e = read_entry(in, unit);
    if (!e.abbreviation) {
      --depth;
    } else if (e.abbreviation->children) {
      ++depth;
    }
  }
}

bool DebugInfo::covers(const Entry& e, const Unit& unit, uintptr_t address) const {
  if (e.has_ranges) return in_ranges(e.ranges, unit, address);
  const uint64_t high = e.high_is_length ? e.low + e.high : e.high;
  return e.has_low && address >= e.low && address < std::max(high, e.low + 1);
}

bool DebugInfo::in_ranges(uint64_t offset, const Unit& unit, uintptr_t address) const {
  uint64_t base = unit.base;
  if (unit.version < 5) {
    if (offset >= ranges_.size()) return false;
    for (DwarfReader in(ranges_.substr(offset)); !in.at_end();) {
      const uint64_t low = in.u64(), high = in.u64();
      if (low == 0 && high == 0) return false;
      if (low == ~uint64_t{0}) {
        base = high;
      } else if (address >= base + low && address < base + high) {
        return true;
      }
    }
    return false;
  }
  if (offset >= range_lists_.size()) return false;
  for (DwarfReader in(range_lists_.substr(offset)); !in.at_end();) {
    uint64_t low = 0, high = 0;
    switch (in.u8()) {
        // clang-format off
      case 4: low = base + in.uleb(); high = base + in.uleb(); break;  // offset_pair
      case 5: base = in.u64(); break;                                  // base_address
      case 6: low = in.u64(); high = in.u64(); break;                  // start_end
      case 7: low = in.u64(); high = low + in.uleb(); break;           // start_length
      default: return false;                                           // the end, or kinds for separate files only
        // clang-format on
    }
    if (address >= low && address < high) return true;
  }
  return false;
}

// What a function's entry, or one that it refers to, says of it.
void DebugInfo::name(uint64_t offset, const Unit& unit, std::string* name, bool* artificial, int depth) const {
  if (offset < unit.first || offset >= unit.end || depth > 4) return;
  DwarfReader in(info_.substr(offset, unit.end - offset));
  const Entry e = read_entry(&in, unit);
  if (name->empty()) *name = e.name;
  *artificial |= e.artificial;
  this->name(e.origin ? e.origin : e.specification, unit, name, artificial, depth + 1);
}

}  // namespace xpu_sim::rt
