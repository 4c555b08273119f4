// The entries of .debug_info, as DebugInfo reads them.
#pragma once

#include "debug_info.h"

namespace xpu_sim::rt {

// clang-format off
enum : uint64_t {  // DWARF 5, section 7.5
  kTagSubprogram = 0x2E, kTagInlined = 0x1D, kTagVariable = 0x34, kTagArray = 0x01, kTagSubrange = 0x21,
  kTagClass = 0x02, kTagEnumeration = 0x04, kTagMember = 0x0D, kTagPointer = 0x0F, kTagReference = 0x10,
  kTagStructure = 0x13, kTagTypedef = 0x16, kTagUnion = 0x17, kTagInheritance = 0x1C, kTagBase = 0x24,
  kTagConst = 0x26, kTagVolatile = 0x35,
  kLocation = 0x02, kByteSize = 0x0B, kBitSize = 0x0D, kUpperBound = 0x2F, kMemberLocation = 0x38, kEncoding = 0x3E,
  kType = 0x49,
  kName = 0x03, kStmtList = 0x10, kLowPc = 0x11, kHighPc = 0x12, kAbstractOrigin = 0x31, kArtificial = 0x34,
  kSpecification = 0x47,
  kRanges = 0x55, kCallFile = 0x58, kCallLine = 0x59, kLinkageName = 0x6E,
  kFormAddr = 0x01,
  kOpFrameBase = 0x91, kOpFramePointer = 0x76, kOpStackPointer = 0x77,  // 2.5.1: fbreg, breg6, breg7, with an offset
  kOpConstant = 0x0E, kOpThreadLocal = 0x9B, kOpThreadLocalGnu = 0xE0,  // const8u, then what it is relative to
  kSigned = 0x05, kUnsigned = 0x07  // 7.8: encodings
};
// clang-format on

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
  uint64_t type = 0, bytes = 0, upper_bound = 0, encoding = 0, member_location = 0;
  int call_file = 0, call_line = 0;
  bool has_low = false, high_is_length = false, has_ranges = false, artificial = false;
  bool has_upper_bound = false, has_member_location = false, is_bit_field = false;
  std::string_view name, linkage_name, location;
};

// Calls f(reader behind it, unit, its entry) for the units that have code at the address (0: all), until it says true.
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
    if (address && (top.has_low || top.has_ranges) && !covers(top, unit, address)) continue;
    if (f(&in, unit, top)) break;
  }
}

}  // namespace xpu_sim::rt
