// Does it matter what was in memory that nothing had written? A load of it alone is no fault: tiles are loaded ahead,
// and structures copied whole. So such a load is remembered, and when the launch has ended it is repeated with other
// values in place of those: if GM, the way of a core or an address of GM differs, the value was used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "xpu_sim/finding.h"

namespace xpu_sim::rt {
struct Core;
struct Launch;
class Worker;
}  // namespace xpu_sim::rt

namespace xpu_sim::rt::strict {

struct State;

// What GM held before the launch wrote to it.
class Journal {
 public:
  void clear();
  // Before the first write of a launch to a piece of GM.
  void save(uintptr_t address, size_t bytes);
  // What the pieces hold now, one behind the other.
  std::vector<char> contents() const;
  void put(const std::vector<char>& contents) const;
  // Makes GM what it was.
  void undo() const { put(saved_); }

 private:
  struct Piece {
    char* at;
    size_t bytes;
  };
  std::vector<Piece> pieces_;
  std::vector<char> saved_;
};

// A load of what nothing has written, at an instruction.
struct UnwrittenLoad {
  const void* pc;
  Finding finding;
};

// Puts the value to be tried into bytes that nothing has written, if the instruction is the one on trial.
void try_other_value(const State& state, char* address, size_t bytes, const void* pc);

// Repeats the launch for each remembered load, and reports those that matter. GM is then as the launch left it.
void repeat_for_unwritten_loads(State& state, Launch& launch);

}  // namespace xpu_sim::rt::strict
