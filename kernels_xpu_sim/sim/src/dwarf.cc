#include "dwarf.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "dwarf_reader.h"

namespace xpu_sim::rt {

// The entries of .debug_info, as DebugInfo reads them.

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

// Calls f(reader after it, unit, its entry) for the units that have code at the address (0: all), until it says true.
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

ElfFile::ElfFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  struct stat info;
  if (fstat(fd, &info) == 0 && static_cast<size_t>(info.st_size) > sizeof(ElfW(Ehdr))) {
    const size_t bytes = static_cast<size_t>(info.st_size);
    void* const p = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p != MAP_FAILED) {
      data_ = static_cast<const char*>(p);
      bytes_ = bytes;
    }
  }
  close(fd);
  if (data_ && std::memcmp(data_, ELFMAG, SELFMAG) != 0) {
    munmap(const_cast<char*>(data_), bytes_);
    data_ = nullptr;
  }
}

ElfFile::~ElfFile() {
  if (data_) munmap(const_cast<char*>(data_), bytes_);
}

std::string_view ElfFile::section(const char* name) const {
  if (!data_) return {};
  const ElfW(Ehdr)& header = *reinterpret_cast<const ElfW(Ehdr)*>(data_);
  const size_t table = header.e_shoff, count = header.e_shnum;
  if (table == 0 || table + count * sizeof(ElfW(Shdr)) > bytes_ || header.e_shstrndx >= count) return {};
  const ElfW(Shdr)* const sections = reinterpret_cast<const ElfW(Shdr)*>(data_ + table);
  const ElfW(Shdr)& names = sections[header.e_shstrndx];
  for (size_t i = 0; i < count; ++i) {
    const ElfW(Shdr)& s = sections[i];
    if (names.sh_offset + s.sh_name >= bytes_ || std::strcmp(data_ + names.sh_offset + s.sh_name, name) != 0) continue;
    if (s.sh_type == SHT_NOBITS || (s.sh_flags & SHF_COMPRESSED) || s.sh_offset + s.sh_size > bytes_) return {};
    return {data_ + s.sh_offset, s.sh_size};
  }
  return {};
}

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

namespace {

uintptr_t begin_of(uint64_t base, int64_t offset, const StackFrame& frame) {
  const uintptr_t distance = static_cast<uintptr_t>(offset);
  switch (base) {
    case kOpFrameBase: return frame.frame_pointer + 16 + distance;  // the stack pointer before the function was called
    case kOpFramePointer: return frame.frame_pointer + distance;
    default: return frame.stack_pointer + distance;
  }
}

}  // namespace

std::string DebugInfo::variable(uintptr_t code, const StackFrame& frame, uintptr_t address, long long* offset) const {
  // Blocks one after the other share memory: the one whose code runs counts, and of those the outermost.
  std::string name;
  for (const Variable& v : function(code).variables) {
    const uintptr_t at = address - begin_of(v.base, v.offset, frame);
    if (v.name.empty() || at >= v.type->bytes || (!v.lives && !name.empty())) continue;
    *offset = static_cast<long long>(at);
    name = v.name;
    if (v.lives) break;
  }
  return name;
}

Scalar DebugInfo::scalar(uintptr_t code, const StackFrame& frame, uintptr_t address) const {
  Scalar found;
  found.described = function(code).found;
  const Scalar none = found;
  bool first = true;
  for (const Variable& v : function(code).variables) {
    const uintptr_t begin = begin_of(v.base, v.offset, frame);
    if (address - begin >= v.type->bytes) continue;
    Scalar s = scalar_in(v.type, address - begin);
    s.begin += begin;
    if (!first && (s.kind != found.kind || s.begin != found.begin || s.bytes != found.bytes)) return none;
    s.described = true;
    found = s;
    first = false;
  }
  return found;
}

Scalar DebugInfo::thread_local_scalar(uintptr_t offset) const {
  if (!has_thread_locals_) read_thread_locals();
  auto next = thread_locals_.upper_bound(offset);
  if (next == thread_locals_.begin()) return {};
  const auto& [begin, type] = *--next;
  if (offset - begin >= type->bytes) return {};
  Scalar s = scalar_in(type, offset - begin);
  s.begin += begin;
  return s;
}

// Those of the function at `code`, of its blocks and of what is inlined there.
const DebugInfo::Function& DebugInfo::function(uintptr_t code) const {
  const auto [entry, is_new] = functions_.try_emplace(code);
  Function& function = entry->second;
  if (!is_new) return function;
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
        read_variables(in, unit, code, &function.variables);
      } else if (e.abbreviation->tag == kTagSubprogram) {
        skip_children(in, unit);
      } else {
        ++depth;
      }
    }
    function.found |= is_function;
    return is_function;
  });
  return function;
}

void DebugInfo::read_variables(DwarfReader* in, const Unit& unit, uintptr_t code, std::vector<Variable>* found) const {
  int elsewhere = 0;  // the depth of the outermost block that does not have the code; 0: there is none
  for (int depth = 1; depth > 0 && !in->at_end();) {
    const Entry e = read_entry(in, unit);
    if (!e.abbreviation) {
      --depth;
      if (depth < elsewhere) elsewhere = 0;
      continue;
    }
    if (e.abbreviation->children) {
      ++depth;
      if (!elsewhere && (e.has_low || e.has_ranges) && !covers(e, unit, code)) elsewhere = depth;
    }
    Variable v;
    v.lives = !elsewhere;
    if (e.abbreviation->tag != kTagVariable || !read_variable(e, unit, &v)) continue;
    const bool on_stack = v.base == kOpFrameBase || v.base == kOpFramePointer || v.base == kOpStackPointer;
    if (on_stack) found->push_back(std::move(v));
  }
}

// False: it is not in memory, or not in one place.
bool DebugInfo::read_variable(const Entry& e, const Unit& unit, Variable* v) const {
  if (e.location.empty()) return false;
  DwarfReader location(e.location);
  v->base = location.u8();
  if (v->base == kOpConstant) {
    v->offset = static_cast<int64_t>(location.u64());
    v->base = location.u8();
    if (v->base != kOpThreadLocal && v->base != kOpThreadLocalGnu) return false;
  } else {
    v->offset = location.sleb();
  }
  if (!location.at_end()) return false;
  uint64_t type = e.type;
  v->name = e.name;
  for (uint64_t from : {e.origin, e.specification}) {
    if (from < unit.first || from >= unit.end) continue;
    DwarfReader in(info_.substr(from, unit.end - from));
    const Entry declared = read_entry(&in, unit);
    type = type ? type : declared.type;
    if (v->name.empty()) v->name = declared.name;
  }
  v->type = type_at(type, unit);
  return true;
}

void DebugInfo::read_thread_locals() const {
  has_thread_locals_ = true;
  each_top_entry(0, [&](DwarfReader* in, const Unit& unit, const Entry&) {
    while (!in->at_end()) {
      const Entry e = read_entry(in, unit);
      // Elsewhere the first operation is of another kind.
      if (!e.abbreviation || e.abbreviation->tag != kTagVariable || e.location.size() != 10) continue;
      Variable v;
      const bool found = read_variable(e, unit, &v) && (v.base == kOpThreadLocal || v.base == kOpThreadLocalGnu);
      if (found) thread_locals_.emplace(static_cast<uintptr_t>(v.offset), v.type);
    }
    return false;
  });
}

const DebugInfo::Type* DebugInfo::type_at(uint64_t offset, const Unit& unit) const {
  static const Type unknown;
  if (offset < unit.first || offset >= unit.end) return &unknown;
  const auto [known, is_new] = types_.try_emplace(offset);
  Type& type = known->second;
  if (!is_new) return &type;
  DwarfReader in(info_.substr(offset, unit.end - offset));
  const Entry e = read_entry(&in, unit);
  if (!e.abbreviation) return &type;
  switch (e.abbreviation->tag) {
    case kTagTypedef:
    case kTagConst:
    case kTagVolatile:
    case kTagEnumeration: type = *type_at(e.type, unit); break;
    case kTagBase:
      type.kind = e.encoding == kSigned ? Scalar::integer : e.encoding == kUnsigned ? Scalar::natural : Scalar::other;
      break;
    case kTagPointer:
    case kTagReference: type.kind = Scalar::other; break;
    case kTagArray:
      type.element = type_at(e.type, unit);
      type.bytes = type.element->bytes;
      if (!e.abbreviation->children) break;
      for (Entry bound = read_entry(&in, unit); bound.abbreviation; bound = read_entry(&in, unit)) {
        if (bound.abbreviation->tag == kTagSubrange) type.bytes *= bound.has_upper_bound ? bound.upper_bound + 1 : 0;
      }
      break;
    case kTagStructure:
    case kTagClass:
      if (e.abbreviation->children) read_members(&in, unit, &type);
      break;
    default: break;  // a union among them: which member counts is not known
  }
  if (e.bytes) type.bytes = e.bytes;
  return &type;
}

void DebugInfo::read_members(DwarfReader* in, const Unit& unit, Type* type) const {
  while (!in->at_end()) {
    const Entry e = read_entry(in, unit);
    if (!e.abbreviation) return;
    const bool member = e.abbreviation->tag == kTagMember || e.abbreviation->tag == kTagInheritance;
    if (member && e.has_member_location && !e.is_bit_field) {
      type->members.emplace_back(e.member_location, type_at(e.type, unit));
    }
    if (e.abbreviation->children) skip_children(in, unit);
  }
}

Scalar DebugInfo::scalar_in(const Type* type, uintptr_t at) {
  uintptr_t begin = 0;
  while (type->kind == Scalar::none) {
    const Type* inner = nullptr;
    uintptr_t from = 0;
    if (type->element && type->element->bytes) {
      inner = type->element;
      from = at / inner->bytes * inner->bytes;
    }
    for (const auto& [offset, member] : type->members) {
      if (at - offset >= member->bytes) continue;
      inner = member;
      from = offset;
    }
    if (!inner) return {};
    begin += from;
    at -= from;
    type = inner;
  }
  return {type->kind, begin, type->bytes, false};
}

}  // namespace xpu_sim::rt
