// Runs the calls of a file of cases (specdec_hal_conformance/device_cases.py) on a device, and compares outputs. Link
// it with kernels compiled with SPECDEC_XPU_DEVICE, by the vendor's compiler or xpu cc; it only uses the runtime's
// functions (xpu/runtime.h). usage: replay CASES [--list | OP...]; status 1: something differs or failed. --list: the
// ops that are linked
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "../kernels/launch_options.h"
#include "specdec/contract.h"
#include "specdec_ops/signature.h"
#include "xpu/runtime.h"

namespace {

using specdec::Access;
using specdec::Cell;
using specdec::FloatType;
using specdec::OperandInfo;
using specdec::OpSignature;

constexpr int kNoFloat = 0xFF;

struct Operand {
  std::string name;
  int float_type = kNoFloat;
  int64_t row_bytes = 0;
  std::string before, after;
  bool compared = false;
  void* device = nullptr;
};

struct Case {
  std::string op, name;
  std::vector<std::pair<std::string, int64_t>> attributes, symbols;
  std::vector<Operand> operands;
  std::string wrong;  // what was, after the call
};

class Reader {
 public:
  explicit Reader(std::string data) : data_(std::move(data)) {}

  bool magic() { return take(8) == "SDCASES1"; }
  bool next() { return number<uint8_t>() != 0 && ok_; }
  bool ok() const { return ok_; }

  Case read_case() {
    Case c;
    c.op = text();
    c.name = text();
    c.attributes = numbers();
    c.symbols = numbers();
    while (next()) {
      Operand o;
      o.name = text();
      o.float_type = number<uint8_t>();
      o.row_bytes = number<int64_t>();
      o.before = text();
      o.compared = next();
      if (o.compared) o.after = text();
      c.operands.push_back(std::move(o));
    }
    return c;
  }

 private:
  template <class T>
  T number() {
    T value{};
    const std::string bytes = take(sizeof value);
    if (ok_) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  std::string text() { return take(number<uint32_t>()); }
  std::vector<std::pair<std::string, int64_t>> numbers() {
    std::vector<std::pair<std::string, int64_t>> all;
    for (uint32_t left = number<uint32_t>(); left > 0 && ok_; --left) {
      std::string name = text();
      all.emplace_back(std::move(name), number<int64_t>());
    }
    return all;
  }
  std::string take(size_t n) {
    ok_ = ok_ && n <= data_.size() - at_;
    if (!ok_) return "";
    at_ += n;
    return data_.substr(at_ - n, n);
  }

  std::string data_;
  size_t at_ = 0;
  bool ok_ = true;
};

template <class Items>
auto find(Items& items, const char* name) {
  return std::find_if(items.begin(), items.end(), [name](const auto& x) { return x.first == name; });
}

// Any NaN equals any other: their bits are left open.
bool is_nan(const char* p, int float_type) {
  uint32_t bits = 0;
  std::memcpy(&bits, p, float_type == static_cast<int>(FloatType::kFloat32) ? 4 : 2);
  switch (static_cast<FloatType>(float_type)) {
    case FloatType::kFloat32: return (bits & 0x7FFFFFFFu) > 0x7F800000u;
    case FloatType::kFloat16: return (bits & 0x7FFFu) > 0x7C00u;
    default: return (bits & 0x7FFFu) > 0x7F80u;
  }
}

// Empty: as expected.
std::string difference(const Operand& o, const std::string& got) {
  const size_t step = o.float_type == static_cast<int>(FloatType::kFloat32) ? 4 : o.float_type == kNoFloat ? 1 : 2;
  for (size_t i = 0; i + step <= got.size(); i += step) {
    if (std::memcmp(&got[i], &o.after[i], step) == 0) continue;
    if (o.float_type != kNoFloat && is_nan(&got[i], o.float_type) && is_nan(&o.after[i], o.float_type)) continue;
    char line[128];
    std::snprintf(line, sizeof line, "byte %zu of %zu is %02x, expected %02x", i, got.size(),
                  static_cast<unsigned char>(got[i]), static_cast<unsigned char>(o.after[i]));
    return "'" + o.name + "': " + line;
  }
  return "";
}

template <class T>
void store(std::vector<char>* args, size_t field, const T& value) {
  std::memcpy(args->data() + field, &value, sizeof value);
}

// The op's arguments, with its operands on the device; *wrong: what is missing.
std::vector<char> arguments(const OpSignature& op, Case* c, std::string* wrong) {
  std::vector<char> args(op.args_bytes);
  for (const auto& info : op.symbols) {
    const auto given = find(c->symbols, info.name);
    if (given != c->symbols.end()) store(&args, info.field, given->second);
  }
  for (const auto& info : op.attributes) {
    const auto given = find(c->attributes, info.name);
    if (given == c->attributes.end()) *wrong = std::string("no attribute '") + info.name + "' in the case";
    if (given != c->attributes.end()) std::memcpy(args.data() + info.field, &given->second, info.bytes);
  }
  for (const OperandInfo& info : op.operands) {
    const auto named = [&info](const Operand& o) { return o.name == info.name; };
    const auto given = std::find_if(c->operands.begin(), c->operands.end(), named);
    if (given == c->operands.end()) continue;
    Operand& o = *given;
    const uint64_t bytes = std::max<uint64_t>(o.before.size(), 1);
    if (xpu_malloc(&o.device, bytes) ||
        (!o.before.empty() && xpu_memcpy(o.device, o.before.data(), o.before.size(), XPU_HOST_TO_DEVICE))) {
      *wrong = "'" + o.name + "' does not get to the device";
    }
    store(&args, info.field, o.device);
    if (info.model != specdec::kNone) continue;
    if (info.cell == Cell::kFloat) store(&args, info.extra, static_cast<FloatType>(o.float_type));
    if (info.cell == Cell::kAny) store(&args, info.extra, o.row_bytes);
  }
  return args;
}

}  // namespace

// What the exported function of an op calls (kernels/op.h), in place of the emulator backend's: `given` is a case.
namespace specdec::xpu {

int bind_op(const OpSignature& op, void (*launch)(const void* args, const LaunchOptions& options), const void* given,
            int, void*) {
  Case& c = *static_cast<Case*>(const_cast<void*>(given));
  const std::vector<char> args = arguments(op, &c, &c.wrong);
  if (!c.wrong.empty()) return 0;
  launch(args.data(), LaunchOptions());
  if (xpu_wait() != 0) c.wrong = "the launch failed";
  for (Operand& o : c.operands) {
    if (!o.compared || !c.wrong.empty()) continue;
    std::string got(o.after.size(), '\0');
    const bool copied = got.empty() || xpu_memcpy(&got[0], o.device, got.size(), XPU_DEVICE_TO_HOST) == 0;
    c.wrong = copied ? difference(o, got) : "'" + o.name + "' does not come from the device";
  }
  for (const Operand& o : c.operands) xpu_free(o.device);
  return 0;
}

int list_limits(const OpSignature&, List<Limit>, void*) { return 0; }

}  // namespace specdec::xpu

int main(int count, char** words) {
  std::ifstream file(count > 1 ? words[1] : "", std::ios::binary);
  Reader in(std::string(std::istreambuf_iterator<char>(file), {}));
  if (!in.magic()) {
    std::fprintf(stderr, "replay: expected a file of cases, got %s; make one with device_cases\n",
                 count > 1 ? words[1] : "none");
    return 2;
  }
  std::vector<std::string> wanted(words + 2, words + std::max(count, 2));
  const bool list = !wanted.empty() && wanted[0] == "--list";
  if (list) wanted.clear();
  std::vector<std::pair<std::string, int>> equal;  // cases of each op
  bool failed = false;
  while (in.next()) {
    Case c = in.read_case();
    if (!in.ok()) break;
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), c.op) == wanted.end()) continue;
    using Exported = int (*)(void*, const void*, int, void*);
    const auto call = reinterpret_cast<Exported>(dlsym(RTLD_DEFAULT, ("__tvm_ffi_" + c.op).c_str()));
    if (!call) continue;  // not linked
    if (find(equal, c.op.c_str()) == equal.end()) equal.emplace_back(c.op, 0);
    if (list) continue;
    call(nullptr, &c, 0, nullptr);
    if (c.wrong.empty()) {
      ++find(equal, c.op.c_str())->second;
    } else {
      std::printf("%s: case %s: %s\n", c.op.c_str(), c.name.c_str(), c.wrong.c_str());
      failed = true;
    }
  }
  for (const auto& [op, cases] : equal) {
    list ? std::printf("%s\n", op.c_str()) : std::printf("%s: %d cases as expected\n", op.c_str(), cases);
  }
  if (!in.ok()) std::fprintf(stderr, "replay: the file of cases ends early\n");
  return failed || !in.ok() || equal.empty();
}
