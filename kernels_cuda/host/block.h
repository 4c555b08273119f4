// One block executing a kernel.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "memory.h"
#include "simt.h"
#include "xpu_sim/fiber.h"

namespace simt {

constexpr unsigned kLanes = 32, kMaxThreads = 1024, kMaxCluster = 16;

class Block;

// That runs in this thread of the machine.
Block* current_block();
void set_current_block(Block* block);

// The barrier of a cluster. A thread that has returned is not waited for.
struct ClusterBarrier {
  unsigned live = 0, arrived = 0;
  std::array<Block*, kMaxCluster> blocks = {};

  void see();  // lets all pass if all have arrived
};

// Random choices of a launch; without a seed, everything is in order.
class Chance {
 public:
  explicit Chance(uint64_t seed) : state_(seed), none_(seed == 0) {}
  // In [0, n); 0 without a seed.
  size_t below(size_t n);

 private:
  uint64_t state_;
  bool none_;
};

class Block {
 public:
  enum class Waits { kNothing, kWarp, kBlock, kCluster, kOver };
  enum class Kind { kVote, kShuffle };
  struct Fiber {
    xpu_sim::Context context;
    Thread view;
    Waits waits;
    bool arrived;     // at the cluster's barrier, since all passed it last
    uint64_t answer;  // to what it waited for last
  };

  explicit Block(unsigned rank) : rank_(rank) {}

  // Called by the machine's thread that is this block's: its thread-local variables are the block's shared ones.
  void begin(const Launch& launch, Size block_index, ClusterBarrier* cluster, Chance* chance,
             const std::function<void()>* kernel);
  // Lets fibers run until each has returned or waits; false if there was none to run.
  bool go();
  bool begun() const { return begun_; }
  bool over() const { return live_ == 0; }
  const std::string& error() const { return error_; }
  // The fibers that it waits for in a deadlock.
  std::string standstill() const;
  void end() { begun_ = false; }

  // Called by fibers.
  Answer meet_block(bool yes);
  uint64_t meet_warp(Kind kind, uint32_t mask, uint64_t value, unsigned from);
  void arrive_cluster();
  void wait_cluster();
  void* shared_of(void* own, unsigned rank);
  SharedMemory& shared() { return shared_; }
  const Thread& running() const { return running_->view; }

  // Called by the cluster's barrier.
  void pass_cluster();

 private:
  struct Meeting {
    Kind kind;
    uint32_t mask = 0, arrived = 0;
    uint64_t value[kLanes];
    unsigned from[kLanes];
  };
  struct Warp {
    uint32_t live = 0;
    std::array<Meeting, kLanes> meetings = {};  // those that have begun, each with a mask of its own, have arrivals
  };

  static void entry(void* block);
  [[noreturn]] void fail(const std::string& what);
  void returned();
  void wait(Waits what);
  void wake(Fiber& fiber);
  static Meeting& meeting_of(Warp& warp, uint32_t mask);
  void see(Warp& warp, size_t first, Meeting& meeting);
  void see_block();
  std::string location(const Fiber& fiber) const;

  SharedMemory shared_;
  Stacks stacks_;
  unsigned rank_;
  bool begun_ = false;
  const std::function<void()>* kernel_ = nullptr;
  ClusterBarrier* cluster_ = nullptr;
  Chance* chance_ = nullptr;
  xpu_sim::Context scheduler_;
  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::deque<Fiber*> ready_;
  Fiber* running_ = nullptr;
  unsigned live_ = 0, at_barrier_ = 0, yes_ = 0;
  std::string error_;
};

}  // namespace simt
