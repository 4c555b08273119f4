// The line table of a file: which source line an instruction belongs to.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "dwarf.h"
#include "dwarf_reader.h"

namespace xpu_sim::rt {

namespace {

constexpr uint64_t kPath = 1, kDirectory = 2;  // DW_LNCT_*

struct Name {
  std::string text;
  uint64_t directory = 0;
};

}  // namespace

// One unit of .debug_line: a header with file names, then a program for a state machine whose rows map addresses to
// lines (DWARF 5, section 6.2).
class LineProgram {
 public:
  LineProgram(DwarfReader unit, bool wide, const ElfFile& elf, LineTable* table)
      : in_(unit),
        wide_(wide),
        strings_(elf.section(".debug_str")),
        line_strings_(elf.section(".debug_line_str")),
        table_(table) {}

  void run() {
    version_ = static_cast<int>(in_.u16());
    if (version_ < 2 || version_ > 5) return;
    if (version_ >= 5) in_.skip(2);  // address size, segment selector size
    const uint64_t header_bytes = in_.offset(wide_);
    DwarfReader program = in_;
    program.skip(header_bytes);
    min_instruction_ = in_.u8();
    if (version_ >= 4) in_.skip(1);  // operations per instruction: no VLIW here
    in_.skip(1);                     // default is_stmt
    line_base_ = static_cast<int8_t>(in_.u8());
    line_range_ = std::max<int>(in_.u8(), 1);
    opcode_base_ = in_.u8();
    lengths_.assign(1, 0);
    for (int i = 1; i < opcode_base_; ++i) lengths_.push_back(in_.u8());
    version_ >= 5 ? read_names5() : read_names4();
    in_ = program;
    while (!in_.at_end()) step();
  }

  const std::vector<int>& files() const { return files_; }

 private:
  void read_names4() {
    std::vector<std::string> directories{""};
    for (std::string_view s = in_.string(); !s.empty(); s = in_.string()) directories.emplace_back(s);
    files_.push_back(-1);
    for (std::string_view s = in_.string(); !s.empty() && !in_.at_end(); s = in_.string()) {
      const uint64_t directory = in_.uleb();
      in_.uleb();
      in_.uleb();
      add_file(std::string(s), directory, directories);
    }
  }

  void read_names5() {
    std::vector<std::string> directories;
    for (const Name& n : entries()) directories.push_back(n.text);
    for (const Name& n : entries()) add_file(n.text, n.directory, directories);
  }

  std::vector<Name> entries() {
    std::vector<std::pair<uint64_t, uint64_t>> format(in_.u8());
    for (auto& [content, form] : format) {
      content = in_.uleb();
      form = in_.uleb();
    }
    std::vector<Name> names(std::min<uint64_t>(in_.uleb(), 1 << 20));
    for (Name& n : names) {
      for (const auto& [content, form] : format) {
        std::string_view text;
        const uint64_t value = in_.form(form, wide_, strings_, line_strings_, &text);
        if (content == kPath) n.text = std::string(text);
        if (content == kDirectory) n.directory = value;
      }
      if (in_.at_end()) break;
    }
    return names;
  }

  // A file in the directory of the compilation keeps the name that the compiler was given, as in __FILE__.
  void add_file(const std::string& name, uint64_t directory, const std::vector<std::string>& directories) {
    const bool alone = name.empty() || name[0] == '/' || directory == 0 || directory >= directories.size();
    files_.push_back(static_cast<int>(table_->files_.size()));
    table_->files_.push_back(alone ? name : directories[directory] + "/" + name);
  }

  void emit(bool end = false) {
    const int file = end || file_ >= files_.size() ? -1 : files_[file_];
    table_->rows_.push_back({address_, file, line_});
  }

  void step() {
    const int op = in_.u8();
    if (op >= opcode_base_) {  // a special opcode: advance both, then a row
      const int adjusted = op - opcode_base_;
      address_ += static_cast<uintptr_t>(adjusted / line_range_) * min_instruction_;
      line_ += line_base_ + adjusted % line_range_;
      emit();
    } else if (op == 0) {
      extended();
    } else {
      standard(op);
    }
  }

  void extended() {
    const uint64_t bytes = in_.uleb();
    DwarfReader body = in_;
    in_.skip(bytes);
    if (bytes == 0) return;
    switch (body.u8()) {
      case 1:  // end_sequence
        emit(true);
        address_ = 0;
        file_ = 1;
        line_ = 1;
        break;
      case 2:  // set_address
        address_ = bytes == 9 ? body.u64() : body.u32();
        break;
      default: break;
    }
  }

  void standard(int op) {
    switch (op) {
      case 1: emit(); break;                                                                      // copy
      case 2: address_ += in_.uleb() * min_instruction_; break;                                   // advance_pc
      case 3: line_ += static_cast<int>(in_.sleb()); break;                                       // advance_line
      case 4: file_ = in_.uleb(); break;                                                          // set_file
      case 8:                                                                                     // const_add_pc
        address_ += static_cast<uintptr_t>((255 - opcode_base_) / line_range_) * min_instruction_;
        break;
      case 9: address_ += in_.u16(); break;                                                       // fixed_advance_pc
      default:
        for (int i = 0; i < lengths_[static_cast<size_t>(op)]; ++i) in_.uleb();
    }
  }

  DwarfReader in_;
  bool wide_;
  std::string_view strings_, line_strings_;
  LineTable* table_;
  int version_ = 0, line_base_ = 0, line_range_ = 1, opcode_base_ = 1;
  unsigned min_instruction_ = 1;
  std::vector<int> lengths_;  // operands of each standard opcode
  std::vector<int> files_;    // this unit's numbers to the table's
  uintptr_t address_ = 0;
  uint64_t file_ = 1;
  int line_ = 1;
};

LineTable::LineTable(const std::string& path) {
  const ElfFile elf(path);
  const std::string_view section = elf.section(".debug_line");
  DwarfReader all(section);
  while (!all.at_end()) {
    const uint64_t offset = section.size() - all.size();
    uint64_t bytes = all.u32();
    const bool wide = bytes == 0xFFFFFFFFu;
    if (wide) bytes = all.u64();
    LineProgram program(all.part(bytes), wide, elf, this);
    program.run();
    programs_.emplace_back(offset, program.files());
    all.skip(bytes);
  }
  std::stable_sort(rows_.begin(), rows_.end(), [](const Row& a, const Row& b) { return a.address < b.address; });
}

bool LineTable::find(uintptr_t address, std::string* file, int* line) const {
  auto at =
      std::upper_bound(rows_.begin(), rows_.end(), address, [](uintptr_t x, const Row& r) { return x < r.address; });
  if (at == rows_.begin()) return false;
  --at;
  // Where several rows share an address the last one that is not an end counts.
  while (at->file < 0 && at != rows_.begin() && (at - 1)->address == at->address) --at;
  if (at->file < 0) return false;
  *file = files_[static_cast<size_t>(at->file)];
  *line = at->line;
  return true;
}

std::string LineTable::file(uint64_t line_program, int number) const {
  for (const auto& [offset, files] : programs_) {
    if (offset != line_program || number < 0 || static_cast<size_t>(number) >= files.size()) continue;
    const int ours = files[static_cast<size_t>(number)];
    return ours < 0 ? "" : files_[static_cast<size_t>(ours)];
  }
  return "";
}

}  // namespace xpu_sim::rt
