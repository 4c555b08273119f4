#include "dwarf.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

namespace xpu_sim::rt {

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

namespace {

// clang-format off
enum : uint64_t {  // DWARF 5, section 7.5
  kTagSubprogram = 0x2E, kTagInlined = 0x1D, kTagVariable = 0x34, kTagArray = 0x01, kTagSubrange = 0x21,
  kTagClass = 0x02, kTagEnumeration = 0x04, kTagMember = 0x0D, kTagPointer = 0x0F, kTagReference = 0x10,
  kTagStructure = 0x13, kTagTypedef = 0x16, kTagInheritance = 0x1C, kTagBase = 0x24, kTagConst = 0x26,
  kTagVolatile = 0x35,
  kLocation = 0x02, kByteSize = 0x0B, kBitSize = 0x0D, kUpperBound = 0x2F, kMemberLocation = 0x38, kEncoding = 0x3E,
  kType = 0x49, kName = 0x03, kStmtList = 0x10, kLowPc = 0x11, kHighPc = 0x12, kAbstractOrigin = 0x31,
  kArtificial = 0x34, kSpecification = 0x47, kRanges = 0x55, kCallFile = 0x58, kCallLine = 0x59,
  kFormAddr = 0x01, kFormImplicitConst = 0x21,
  kOpFrameBase = 0x91, kOpFramePointer = 0x76, kOpStackPointer = 0x77,  // 2.5.1: fbreg, breg6, breg7, with an offset
  kOpConstant = 0x0E, kOpThreadLocal = 0x9B, kOpThreadLocalGnu = 0xE0,  // const8u, then what it is relative to
  kSigned = 0x05, kUnsigned = 0x07,  // 7.8: encodings
  kPath = 1, kDirectory = 2          // 7.22: of the entries of a line program
};
// clang-format on

struct Sections {
  std::string_view info, abbreviations, strings, line_strings, lines, ranges;
};

// Numbers and strings from a piece of a file, little-endian, with offsets of 32 bits. Past the end all reads as zero.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  bool at_end() const { return rest_.empty(); }
  size_t size() const { return rest_.size(); }
  void skip(uint64_t n) { rest_.remove_prefix(n < rest_.size() ? n : rest_.size()); }
  Reader part(uint64_t n) const { return Reader(rest_.substr(0, n)); }

  uint8_t u8() { return number<uint8_t>(); }
  uint16_t u16() { return number<uint16_t>(); }
  uint32_t u32() { return number<uint32_t>(); }
  uint64_t u64() { return number<uint64_t>(); }
  uint64_t uleb() { return leb(false); }
  int64_t sleb() { return static_cast<int64_t>(leb(true)); }

  std::string_view string() {
    const size_t n = rest_.find('\0');
    const std::string_view s = rest_.substr(0, n);
    skip(n == std::string_view::npos ? rest_.size() : n + 1);
    return s;
  }

  // A value in any form (7.5.6): a number as the result, a string or a block as *text. An unknown form ends the piece,
  // since its length is not known.
  uint64_t form(uint64_t form, const Sections& sections, std::string_view* text) {
    switch (form) {
        // clang-format off
      case 0x01: return u64();                                                             // addr
      case 0x03: skip(u16()); return 0;                                                    // block2
      case 0x04: skip(u32()); return 0;                                                    // block4
      case 0x05: case 0x12: case 0x26: case 0x2A: return u16();                            // data2/ref2/strx2/addrx2
      case 0x06: case 0x13: case 0x28: case 0x2C: case 0x10: case 0x17: return u32();      // data4, ref4, offsets, ...
      case 0x07: case 0x14: case 0x20: return u64();                                       // data8, ref8, ref_sig8
      case 0x08: *text = string(); return 0;                                               // string
      case 0x09: case 0x18: *text = bytes(uleb()); return 0;                               // block, exprloc
      case 0x0A: skip(u8()); return 0;                                                     // block1
      case 0x0B: case 0x0C: case 0x11: case 0x25: case 0x29: return u8();                  // data1, flag, ref1, strx1
      case 0x0D: return static_cast<uint64_t>(sleb());                                     // sdata
      case 0x0E: *text = Reader(after(sections.strings, u32())).string(); return 0;        // strp
      case 0x0F: case 0x15: case 0x1A: case 0x1B: case 0x22: case 0x23: return uleb();     // udata/ref_udata/indices
      case 0x19: return 1;                                                                 // flag_present
      case 0x1E: skip(16); return 0;                                                       // data16
      case 0x1F: *text = Reader(after(sections.line_strings, u32())).string(); return 0;   // line_strp
      case kFormImplicitConst: return 0;                                                   // the abbreviation has it
      default: skip(rest_.size()); return 0;
        // clang-format on
    }
  }

  static std::string_view after(std::string_view s, uint64_t n) {
    return n < s.size() ? s.substr(n) : std::string_view();
  }

 private:
  std::string_view bytes(uint64_t n) {
    const std::string_view all = rest_.substr(0, n);
    skip(n);
    return all;
  }

  uint64_t leb(bool has_sign) {
    uint64_t value = 0;
    unsigned shift = 0;
    uint8_t byte = 0x80;
    for (; (byte & 0x80) && !at_end(); shift += 7) {
      byte = u8();
      if (shift < 64) value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    }
    if (has_sign && (byte & 0x40) && shift < 64) value |= ~uint64_t{0} << shift;
    return value;
  }

  template <class T>
  T number() {
    T value = 0;
    if (rest_.size() >= sizeof value) std::memcpy(&value, rest_.data(), sizeof value);
    skip(sizeof value);
    return value;
  }

  std::string_view rest_;
};

struct Row {
  uintptr_t address;
  int file;  // index into the files; -1: here a sequence ends
  int line;
};

// One unit of .debug_line: a header with file names, then a program for a state machine whose rows map addresses to
// lines (6.2).
class LineProgram {
 public:
  LineProgram(Reader unit, const Sections& sections, std::vector<std::string>* files, std::vector<Row>* rows)
      : in_(unit), sections_(sections), all_files_(files), rows_(rows) {}

  void run() {
    if (in_.u16() != 5) return;
    in_.skip(2);  // address size, segment selector size
    const uint64_t header_bytes = in_.u32();
    Reader program = in_;
    program.skip(header_bytes);
    min_instruction_ = in_.u8();
    in_.skip(2);  // operations per instruction: no VLIW here; default is_stmt
    line_base_ = static_cast<int8_t>(in_.u8());
    line_range_ = std::max<int>(in_.u8(), 1);
    opcode_base_ = in_.u8();
    lengths_.assign(1, 0);
    for (int i = 1; i < opcode_base_; ++i) lengths_.push_back(in_.u8());
    const std::vector<Name> directories = names();
    for (const Name& n : names()) {
      // A file in the directory of the compilation keeps the name that the compiler was given, as in __FILE__.
      const bool alone = n.text.empty() || n.text[0] == '/' || n.directory == 0 || n.directory >= directories.size();
      files_.push_back(static_cast<int>(all_files_->size()));
      all_files_->push_back(alone ? n.text : directories[n.directory].text + "/" + n.text);
    }
    in_ = program;
    while (!in_.at_end()) step();
  }

  // This unit's numbers of files to those of all.
  const std::vector<int>& files() const { return files_; }

 private:
  struct Name {
    std::string text;
    uint64_t directory = 0;
  };

  std::vector<Name> names() {
    std::vector<std::pair<uint64_t, uint64_t>> format(in_.u8());
    for (auto& [content, form] : format) {
      content = in_.uleb();
      form = in_.uleb();
    }
    std::vector<Name> names(std::min<uint64_t>(in_.uleb(), 1 << 20));
    for (Name& n : names) {
      for (const auto& [content, form] : format) {
        std::string_view text;
        const uint64_t value = in_.form(form, sections_, &text);
        if (content == kPath) n.text = std::string(text);
        if (content == kDirectory) n.directory = value;
      }
      if (in_.at_end()) break;
    }
    return names;
  }

  void emit(bool end = false) {
    rows_->push_back({address_, end || file_ >= files_.size() ? -1 : files_[file_], line_});
  }

  void step() {
    const int op = in_.u8();
    const auto advance = [this](int adjusted) {
      address_ += static_cast<uintptr_t>(adjusted / line_range_) * min_instruction_;
      return adjusted % line_range_;
    };
    if (op >= opcode_base_) {  // a special opcode: advance both, then a row
      line_ += line_base_ + advance(op - opcode_base_);
      return emit();
    }
    switch (op) {
        // clang-format off
      case 0: extended(); break;
      case 1: emit(); break;                                     // copy
      case 2: address_ += in_.uleb() * min_instruction_; break;  // advance_pc
      case 3: line_ += static_cast<int>(in_.sleb()); break;      // advance_line
      case 4: file_ = in_.uleb(); break;                         // set_file
      case 8: advance(255 - opcode_base_); break;                // const_add_pc
      case 9: address_ += in_.u16(); break;                      // fixed_advance_pc
        // clang-format on
      default:
        for (int i = 0; i < lengths_[static_cast<size_t>(op)]; ++i) in_.uleb();
    }
  }

  void extended() {
    const uint64_t bytes = in_.uleb();
    Reader body = in_.part(bytes);
    in_.skip(bytes);
    switch (body.u8()) {
      case 1:  // end_sequence
        emit(true);
        address_ = 0;
        file_ = 1;
        line_ = 1;
        break;
      case 2: address_ = body.u64(); break;  // set_address
      default: break;
    }
  }

  Reader in_;
  const Sections& sections_;
  std::vector<std::string>* all_files_;
  std::vector<Row>* rows_;
  int line_base_ = 0, line_range_ = 1, opcode_base_ = 1;
  unsigned min_instruction_ = 1;
  std::vector<int> lengths_;  // operands of each standard opcode
  std::vector<int> files_;
  uintptr_t address_ = 0;
  uint64_t file_ = 1;
  int line_ = 1;
};

struct Attribute {
  uint64_t name, form;
  int64_t constant;
};

struct Abbreviation {
  uint64_t tag = 0;
  bool children = false;
  std::vector<Attribute> attributes;
};

struct Unit {
  uint64_t offset = 0, end = 0, first = 0;  // in .debug_info; `first`: its first entry
  uintptr_t base = 0;                       // what offsets in range lists are relative to
  std::vector<Abbreviation> abbreviations;

  bool has(uint64_t entry) const { return entry >= first && entry < end; }
};

// The attributes that matter here; references are offsets in .debug_info.
struct Entry {
  const Abbreviation* abbreviation = nullptr;  // nullptr: the end of a list of children
  uint64_t low = 0, high = 0, ranges = 0, origin = 0, specification = 0, line_program = 0;
  uint64_t type = 0, bytes = 0, upper_bound = 0, encoding = 0, member_location = 0;
  int call_file = 0, call_line = 0;
  bool has_low = false, high_is_length = false, has_ranges = false, artificial = false;
  bool has_upper_bound = false, has_member_location = false, is_bit_field = false;
  std::string_view name, location;

  bool has_code() const { return has_low || has_ranges; }
  uint64_t tag() const { return abbreviation->tag; }
};

// What a variable's type says of its memory: a scalar, an array of `element`, or a record of members.
struct Type {
  Scalar::Kind kind = Scalar::none;
  size_t bytes = 0;  // 0: not known when compiling
  const Type* element = nullptr;
  std::vector<std::pair<size_t, const Type*>> members;  // from where
};

// In memory of a function's own: `offset` bytes from what `base` says, an operation of DWARF.
struct Variable {
  std::string name;
  uint64_t base;
  int64_t offset;
  const Type* type;
  bool lives = true;  // its block has the code

  uintptr_t begin(const StackFrame& frame) const {
    const uintptr_t distance = static_cast<uintptr_t>(offset);
    switch (base) {
      case kOpFrameBase:
        return frame.frame_pointer + 16 + distance;  // the stack pointer before the function was called
      case kOpFramePointer: return frame.frame_pointer + distance;
      default: return frame.stack_pointer + distance;
    }
  }
};

// A function that is inlined at some code, and from where it was called.
struct InlinedCall {
  std::string function;
  bool artificial;  // the compiler's, such as an assignment of structures
  int file, line;   // the file's number in the unit's line program
};

// Where some code is. `calls`: from the outside in; `variables`: those of the function, of its blocks and of what is
// inlined there.
struct Function {
  bool found = false;
  uint64_t line_program = 0;  // the unit's offset in .debug_line
  std::vector<InlinedCall> calls;
  std::vector<Variable> variables;
};

Scalar scalar_in(const Type* type, uintptr_t at) {
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

}  // namespace

struct DebugInfo::Tables {
  explicit Tables(const std::string& path) : elf(path) {
    sections = {elf.section(".debug_info"),     elf.section(".debug_abbrev"), elf.section(".debug_str"),
                elf.section(".debug_line_str"), elf.section(".debug_line"),   elf.section(".debug_rnglists")};
  }

  // -- lines

  void read_lines() {
    if (std::exchange(has_lines, true)) return;
    for (Reader all(sections.lines); !all.at_end();) {
      const uint64_t offset = sections.lines.size() - all.size(), bytes = all.u32();
      LineProgram program(all.part(bytes), sections, &files, &rows);
      program.run();
      programs[offset] = program.files();
      all.skip(bytes);
    }
    std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.address < b.address; });
  }

  // The file and line of an instruction, if they are known.
  void find_line(uintptr_t address, Location* where) {
    read_lines();
    auto at =
        std::upper_bound(rows.begin(), rows.end(), address, [](uintptr_t x, const Row& r) { return x < r.address; });
    if (at == rows.begin()) return;
    --at;
    // Where several rows share an address the last one that is not an end counts.
    while (at->file < 0 && at != rows.begin() && (at - 1)->address == at->address) --at;
    if (at->file < 0) return;
    where->file = files[static_cast<size_t>(at->file)];
    where->line = at->line;
  }

  // A file by its number in the line program at that offset of .debug_line; empty: unknown.
  std::string file(uint64_t line_program, int number) {
    const auto program = programs.find(line_program);
    if (program == programs.end() || static_cast<size_t>(number) >= program->second.size()) return "";
    return files[static_cast<size_t>(program->second[static_cast<size_t>(number)])];
  }

  // -- entries

  // Calls f(reader after it, unit, its entry) for the units that have code at the address (0: all), until it says true.
  template <class F>
  void each_unit(uintptr_t address, F f) {
    for (uint64_t offset = 0; offset < sections.info.size();) {
      Unit unit;
      const bool known = read_unit(offset, &unit);
      if (unit.end <= offset) break;
      offset = unit.end;
      if (!known) continue;
      Reader in(sections.info.substr(unit.first, unit.end - unit.first));
      const Entry top = read_entry(&in, unit);
      if (!top.abbreviation) continue;
      unit.base = top.has_low ? top.low : 0;
      if (address && top.has_code() && !covers(top, unit, address)) continue;
      if (f(&in, unit, top)) break;
    }
  }

  // False: of another version, or no compilation unit.
  bool read_unit(uint64_t offset, Unit* unit) {
    Reader in(sections.info.substr(offset));
    unit->offset = offset;
    unit->end = std::min<uint64_t>(offset + 4 + in.u32(), sections.info.size());
    if (in.u16() != 5 || in.u8() != 1) return false;
    in.skip(1);
    read_abbreviations(in.u32(), &unit->abbreviations);
    unit->first = offset + 12;
    return true;
  }

  void read_abbreviations(uint64_t offset, std::vector<Abbreviation>* out) {
    Reader in(Reader::after(sections.abbreviations, offset));
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

  Entry read_entry(Reader* in, const Unit& unit) {
    Entry e;
    const uint64_t code = in->uleb();
    if (code == 0 || code >= unit.abbreviations.size()) return e;
    e.abbreviation = &unit.abbreviations[code];
    for (const Attribute& a : e.abbreviation->attributes) {
      std::string_view text;
      uint64_t value = in->form(a.form, sections, &text);
      if (a.form == kFormImplicitConst) value = static_cast<uint64_t>(a.constant);
      const bool local = a.form >= 0x11 && a.form <= 0x15;  // ref1 .. ref_udata: relative to the unit
      const uint64_t reference = value + (local ? unit.offset : 0);
      switch (a.name) {
          // clang-format off
        case kName: e.name = text; break;
        case kLowPc: e.low = value; e.has_low = true; break;
        case kHighPc: e.high = value; e.high_is_length = a.form != kFormAddr; break;
        case kRanges: e.ranges = value; e.has_ranges = true; break;
        case kAbstractOrigin: e.origin = reference; break;
        case kSpecification: e.specification = reference; break;
        case kArtificial: e.artificial = value != 0; break;
        case kStmtList: e.line_program = value; break;
        case kLocation: e.location = text; break;
        case kType: e.type = reference; break;
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

  Entry entry_at(uint64_t offset, const Unit& unit) {
    Reader in(sections.info.substr(offset, unit.end - offset));
    return read_entry(&in, unit);
  }

  void skip_children(Reader* in, const Unit& unit) {
    for (int depth = 1; depth > 0 && !in->at_end();) {
      const Entry e = read_entry(in, unit);
      depth += !e.abbreviation ? -1 : e.abbreviation->children ? 1 : 0;
    }
  }

  bool covers(const Entry& e, const Unit& unit, uintptr_t address) {
    if (e.has_ranges) return in_ranges(e.ranges, unit, address);
    const uint64_t high = e.high_is_length ? e.low + e.high : e.high;
    return e.has_low && address >= e.low && address < std::max(high, e.low + 1);
  }

  bool in_ranges(uint64_t offset, const Unit& unit, uintptr_t address) {
    uint64_t base = unit.base;
    for (Reader in(Reader::after(sections.ranges, offset)); !in.at_end();) {
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

  // -- functions and variables

  const Function& function(uintptr_t code) {
    const auto [known, is_new] = functions.try_emplace(code);
    Function& function = known->second;
    if (!is_new) return function;
    each_unit(code, [&](Reader* in, const Unit& unit, const Entry& top) {
      for (int depth = top.abbreviation->children ? 1 : 0; depth > 0 && !in->at_end() && !function.found;) {
        const Entry e = read_entry(in, unit);
        if (!e.abbreviation) {
          --depth;
          continue;
        }
        function.found = e.tag() == kTagSubprogram && e.has_code() && covers(e, unit, code);
        if (!e.abbreviation->children) continue;
        if (function.found) {
          read_function(in, unit, code, &function);
        } else if (e.tag() == kTagSubprogram) {
          skip_children(in, unit);
        } else {
          ++depth;
        }
      }
      function.line_program = top.line_program;
      return function.found;
    });
    return function;
  }

  void read_function(Reader* in, const Unit& unit, uintptr_t code, Function* function) {
    int elsewhere = 0;  // the depth of the outermost block that does not have the code; 0: there is none
    for (int depth = 1; depth > 0 && !in->at_end();) {
      const Entry e = read_entry(in, unit);
      if (!e.abbreviation) {
        --depth;
        if (depth < elsewhere) elsewhere = 0;
        continue;
      }
      const bool here = e.has_code() && covers(e, unit, code);
      if (e.abbreviation->children) {
        ++depth;
        if (!elsewhere && e.has_code() && !here) elsewhere = depth;
      }
      if (here && e.tag() == kTagInlined) {
        function->calls.push_back({"", false, e.call_file, e.call_line});
        name(e.origin, unit, &function->calls.back());
      }
      Variable v;
      v.lives = !elsewhere;
      if (e.tag() != kTagVariable || !read_variable(e, unit, &v)) continue;
      const bool on_stack = v.base == kOpFrameBase || v.base == kOpFramePointer || v.base == kOpStackPointer;
      if (on_stack) function->variables.push_back(std::move(v));
    }
  }

  // What an inlined function's entry, or one that it refers to, says of it.
  void name(uint64_t offset, const Unit& unit, InlinedCall* call, int depth = 0) {
    if (!unit.has(offset) || depth > 4) return;
    const Entry e = entry_at(offset, unit);
    if (call->function.empty()) call->function = e.name;
    call->artificial |= e.artificial;
    name(e.origin ? e.origin : e.specification, unit, call, depth + 1);
  }

  // False: it is not in memory, or not in one place.
  bool read_variable(const Entry& e, const Unit& unit, Variable* v) {
    if (e.location.empty()) return false;
    Reader location(e.location);
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
      if (!unit.has(from)) continue;
      const Entry declared = entry_at(from, unit);
      type = type ? type : declared.type;
      if (v->name.empty()) v->name = declared.name;
    }
    v->type = type_at(type, unit);
    return true;
  }

  void read_thread_locals() {
    if (std::exchange(has_thread_locals, true)) return;
    each_unit(0, [&](Reader* in, const Unit& unit, const Entry&) {
      while (!in->at_end()) {
        const Entry e = read_entry(in, unit);
        // Elsewhere the first operation is of another kind.
        if (!e.abbreviation || e.tag() != kTagVariable || e.location.size() != 10) continue;
        Variable v;
        const bool found = read_variable(e, unit, &v) && (v.base == kOpThreadLocal || v.base == kOpThreadLocalGnu);
        if (found) thread_locals.emplace(static_cast<uintptr_t>(v.offset), v.type);
      }
      return false;
    });
  }

  const Type* type_at(uint64_t offset, const Unit& unit) {
    static const Type unknown;
    if (!unit.has(offset)) return &unknown;
    const auto [known, is_new] = types.try_emplace(offset);
    Type& type = known->second;
    if (!is_new) return &type;
    Reader in(sections.info.substr(offset, unit.end - offset));
    const Entry e = read_entry(&in, unit);
    if (!e.abbreviation) return &type;
    switch (e.tag()) {
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
          if (bound.tag() == kTagSubrange) type.bytes *= bound.has_upper_bound ? bound.upper_bound + 1 : 0;
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

  void read_members(Reader* in, const Unit& unit, Type* type) {
    while (!in->at_end()) {
      const Entry e = read_entry(in, unit);
      if (!e.abbreviation) return;
      const bool member = e.tag() == kTagMember || e.tag() == kTagInheritance;
      if (member && e.has_member_location && !e.is_bit_field) {
        type->members.emplace_back(e.member_location, type_at(e.type, unit));
      }
      if (e.abbreviation->children) skip_children(in, unit);
    }
  }

  ElfFile elf;
  Sections sections;
  bool has_lines = false, has_thread_locals = false;
  std::vector<std::string> files;
  std::vector<Row> rows;                           // sorted by address
  std::map<uint64_t, std::vector<int>> programs;   // by offset: their numbers of files to ours
  std::map<uint64_t, Type> types;                  // by offset in .debug_info
  std::map<uintptr_t, Function> functions;         // by code address
  std::map<uintptr_t, const Type*> thread_locals;
};

DebugInfo::DebugInfo(const std::string& path) : tables_(new Tables(path)) {}

DebugInfo::~DebugInfo() = default;

std::vector<Location> DebugInfo::places(uintptr_t code, const std::string& function) {
  std::vector<Location> all(1);
  all[0].function = function;
  tables_->find_line(code, &all[0]);
  const Function& found = tables_->function(code);
  for (auto call = found.calls.rbegin(); call != found.calls.rend(); ++call) {
    // Generated code has no line of its own: use its caller's.
    if (call->artificial) all.pop_back();
    if (!all.empty()) all.back().function = call->function;
    all.push_back({tables_->file(found.line_program, call->file), call->line, function});
  }
  return all;
}

std::string DebugInfo::variable(uintptr_t code, const StackFrame& frame, uintptr_t address, long long* offset) {
  // Blocks one after the other share memory: the one whose code runs counts, and of those the outermost.
  std::string name;
  for (const Variable& v : tables_->function(code).variables) {
    const uintptr_t at = address - v.begin(frame);
    if (v.name.empty() || at >= v.type->bytes || (!v.lives && !name.empty())) continue;
    *offset = static_cast<long long>(at);
    name = v.name;
    if (v.lives) break;
  }
  return name;
}

Scalar DebugInfo::scalar(uintptr_t code, const StackFrame& frame, uintptr_t address) {
  Scalar found;
  found.described = tables_->function(code).found;
  const Scalar none = found;
  bool first = true;
  for (const Variable& v : tables_->function(code).variables) {
    const uintptr_t begin = v.begin(frame);
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

Scalar DebugInfo::thread_local_scalar(uintptr_t offset) {
  tables_->read_thread_locals();
  auto next = tables_->thread_locals.upper_bound(offset);
  if (next == tables_->thread_locals.begin()) return {};
  const auto& [begin, type] = *--next;
  if (offset - begin >= type->bytes) return {};
  Scalar s = scalar_in(type, offset - begin);
  s.begin += begin;
  return s;
}

}  // namespace xpu_sim::rt
