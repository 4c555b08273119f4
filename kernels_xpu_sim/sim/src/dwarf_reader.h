// Reading DWARF's encodings from a piece of a file, little-endian. Past the end everything reads as zero.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace xpu_sim::rt {

class DwarfReader {
 public:
  explicit DwarfReader(std::string_view bytes) : rest_(bytes) {}

  bool at_end() const { return rest_.empty(); }
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

  // A value in one of the forms that file tables use; a string goes to *text.
  uint64_t form(uint64_t form, bool wide, std::string_view strings, std::string_view line_strings,
                std::string_view* text) {
    switch (form) {
      case 0x08: *text = string(); return 0;                                         // string
      case 0x0E: *text = DwarfReader(after(strings, offset(wide))).string(); return 0;       // strp
      case 0x1F: *text = DwarfReader(after(line_strings, offset(wide))).string(); return 0;  // line_strp
      case 0x0B: return u8();                                                        // data1
      case 0x05: return u16();                                                       // data2
      case 0x06: return u32();                                                       // data4
      case 0x07: return u64();                                                       // data8
      case 0x0F: return uleb();                                                      // udata
      case 0x1E: skip(16); return 0;                                                 // data16: a checksum
      default: skip(rest_.size()); return 0;
    }
  }

 private:
  static std::string_view after(std::string_view s, uint64_t n) { return n < s.size() ? s.substr(n) : std::string_view(); }

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
