// Reading DWARF's encodings from a piece of a file, little-endian. Past the end everything reads as zero.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace xpu_sim::rt {

constexpr uint64_t kFormImplicitConst = 0x21;

class DwarfReader {
 public:
  explicit DwarfReader(std::string_view bytes) : rest_(bytes) {}

  bool at_end() const { return rest_.empty(); }
  size_t size() const { return rest_.size(); }
  void skip(uint64_t n) { rest_.remove_prefix(n < rest_.size() ? n : rest_.size()); }
  DwarfReader part(uint64_t n) const { return DwarfReader(rest_.substr(0, n)); }

  uint8_t u8() { return number<uint8_t>(); }
  uint16_t u16() { return number<uint16_t>(); }
  uint32_t u32() { return number<uint32_t>(); }
  uint64_t u64() { return number<uint64_t>(); }
  uint64_t offset(bool wide) { return wide ? u64() : u32(); }

  uint64_t uleb() {
    uint64_t value = 0;
    for (unsigned shift = 0; !at_end(); shift += 7) {
      const uint8_t byte = u8();
      if (shift < 64) value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (!(byte & 0x80)) break;
    }
    return value;
  }

  int64_t sleb() {
    uint64_t value = 0;
    unsigned shift = 0;
    uint8_t byte = 0;
    do {
      byte = u8();
      if (shift < 64) value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      shift += 7;
    } while ((byte & 0x80) && !at_end());
    if ((byte & 0x40) && shift < 64) value |= ~uint64_t{0} << shift;
    return static_cast<int64_t>(value);
  }

  std::string_view string() {
    const size_t n = rest_.find('\0');
    const std::string_view s = rest_.substr(0, n);
    skip(n == std::string_view::npos ? rest_.size() : n + 1);
    return s;
  }

  // A value in any form (DWARF 5, section 7.5.6): a number as the result, a string as *text. Blocks are skipped. An
  // unknown form ends the piece, since its length is not known.
  uint64_t form(uint64_t form, bool wide, std::string_view strings, std::string_view line_strings,
                std::string_view* text) {
    switch (form) {
        // clang-format off
      case 0x01: return u64();                                                               // addr
      case 0x03: skip(u16()); return 0;                                                      // block2
      case 0x04: skip(u32()); return 0;                                                      // block4
      case 0x05: case 0x12: case 0x26: case 0x2A: return u16();                              // data2/ref2/strx2/addrx2
      case 0x06: case 0x13: case 0x28: case 0x2C: return u32();                              // data4/ref4/strx4/addrx4
      case 0x07: case 0x14: case 0x20: return u64();                                         // data8, ref8, ref_sig8
      case 0x08: *text = string(); return 0;                                                 // string
      case 0x09: case 0x18: *text = bytes(uleb()); return 0;                                 // block, exprloc
      case 0x0A: skip(u8()); return 0;                                                       // block1
      case 0x0B: case 0x0C: case 0x11:                                                       // data1/flag/ref1
      case 0x25: case 0x29: return u8();                                                     // strx1/addrx1
      case 0x0D: return static_cast<uint64_t>(sleb());                                       // sdata
      case 0x0E: *text = DwarfReader(after(strings, offset(wide))).string(); return 0;       // strp
      case 0x0F: case 0x15: case 0x1A: case 0x1B: case 0x22: case 0x23: return uleb();       // udata/ref_udata/indices
      case 0x10: case 0x17: return offset(wide);                                             // ref_addr, sec_offset
      case 0x19: return 1;                                                                   // flag_present
      case 0x1E: skip(16); return 0;                                                         // data16
      case 0x1F: *text = DwarfReader(after(line_strings, offset(wide))).string(); return 0;  // line_strp
      case kFormImplicitConst: return 0;                                                     // the abbreviation has it
      default: skip(rest_.size()); return 0;
        // clang-format on
    }
  }

 private:
  std::string_view bytes(uint64_t n) {
    const std::string_view all = rest_.substr(0, n);
    skip(n);
    return all;
  }

  static std::string_view after(std::string_view s, uint64_t n) {
    return n < s.size() ? s.substr(n) : std::string_view();
  }

  template <class T>
  T number() {
    T value = 0;
    if (rest_.size() >= sizeof value) {
      std::memcpy(&value, rest_.data(), sizeof value);
      rest_.remove_prefix(sizeof value);
    } else {
      rest_ = {};
    }
    return value;
  }

  std::string_view rest_;
};

}  // namespace xpu_sim::rt
