#include "debug_info.h"

#include <algorithm>

#include "debug_entries.h"

namespace xpu_sim::rt {

DebugInfo::DebugInfo(const std::string& path)
    : elf_(path),
      info_(elf_.section(".debug_info")),
      abbreviations_(elf_.section(".debug_abbrev")),
      strings_(elf_.section(".debug_str")),
      line_strings_(elf_.section(".debug_line_str")),
      ranges_(elf_.section(".debug_ranges")),
      range_lists_(elf_.section(".debug_rnglists")) {}

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
      case kEncoding: e.encoding = value; break;
      case kMemberLocation: e.member_location = value; e.has_member_location = text.empty(); break;
      case kBitSize: e.is_bit_field = true; break;
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
