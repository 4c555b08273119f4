// Calls of kernels and wrappers with arguments from a file.
#include "xpu_sim/calls.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <new>
#include <string>
#include <vector>

#include "json.h"
#include "xpu_sim/gm.h"

namespace xpu_sim::calls {

namespace {

constexpr int kUsage = 64;

// How an argument is given: a pointer to GM (on the CPU path: to the host's memory), to the host's memory wherever the
// call runs, or to nothing; or a value or the elements of a vector.
enum class Given : char { device = 'g', host = 'h', null = 'n', value = 'v' };

// An argument of a request, and the memory that it points to for the time of the call.
class Held {
 public:
  explicit Held(std::istream& in) {
    char given = 0;
    size_t count = 0;
    in >> given >> count >> name_;
    in.get();  // the end of the line
    given_ = static_cast<Given>(given);
    bytes_.resize(count);
    in.read(bytes_.data(), static_cast<std::streamsize>(count));
  }
  ~Held() { release(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  Argument allocate(const Described& parameter, bool cpu) {
    if (given_ == Given::device || given_ == Given::host) {
      gm_ = given_ == Given::device && !cpu;
      if (gm_) {
        memory_ =
            gm_alloc_bytes(bytes_.size(), name_.c_str(), static_cast<unsigned>(parameter.element), parameter.access);
      } else if (posix_memalign(&memory_, 64, bytes_.size() + 1) != 0) {
        throw std::bad_alloc();
      }
      std::copy(bytes_.begin(), bytes_.end(), static_cast<char*>(memory_));
    }
    return {bytes_.data(), bytes_.size(), memory_};
  }

  // What the call left.
  const std::vector<char>& take() {
    if (memory_) std::copy_n(static_cast<const char*>(memory_), bytes_.size(), bytes_.begin());
    release();
    return bytes_;
  }

 private:
  void release() {
    gm_ ? gm_free(memory_) : std::free(memory_);
    memory_ = nullptr;
  }

  Given given_ = Given::value;
  std::string name_;
  std::vector<char> bytes_;
  void* memory_ = nullptr;
  bool gm_ = false;
};

void print_signatures(const Entry* entries, size_t count) {
  const auto parameter = [](const Described& p) {
    return Json().add("kind", p.kind).add("type", p.type).add("element", p.element).text();
  };
  const auto signature = [&parameter](const Entry& e) {
    const std::vector<Described> parameters(e.parameters, e.parameters + e.count);
    return Json().add("name", e.name).add_raw("parameters", json_array(parameters, parameter)).text();
  };
  std::printf("%s\n", json_array(std::vector<Entry>(entries, entries + count), signature, true).c_str());
}

}  // namespace

// A call in a request: "ENTRY CLUSTERS CORES cpu|xpu ARGUMENTS", then for each argument "GIVEN BYTES NAME" and its
// bytes. In the response: the status, then the bytes of each argument.
int run(const Entry* entries, size_t count, int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--signatures") == 0) {
    print_signatures(entries, count);
    return 0;
  }
  if (argc != 3) return kUsage;
  std::ifstream in(argv[1], std::ios::binary);
  std::ofstream out(argv[2], std::ios::binary);
  size_t number, given;
  Target target;
  std::string path;
  while (in >> number >> target.clusters >> target.cores >> path >> given) {
    if (number >= count || given != entries[number].count) return kUsage;
    const Entry& entry = entries[number];
    target.cpu = path == "cpu";
    std::deque<Held> held;  // which do not move
    for (size_t i = 0; i < given; ++i) held.emplace_back(in);
    std::vector<Argument> arguments;
    for (size_t i = 0; i < given; ++i) arguments.push_back(held[i].allocate(entry.parameters[i], target.cpu));
    const int32_t status = entry.call(entry.function, target, arguments.data());
    out.write(reinterpret_cast<const char*>(&status), sizeof status);
    for (Held& h : held) {
      const std::vector<char>& bytes = h.take();
      out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    }
    out.flush();  // a later call may end the process
  }
  return 0;
}

}  // namespace xpu_sim::calls
