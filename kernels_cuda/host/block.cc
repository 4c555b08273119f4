#include "block.h"

#include <utility>

namespace simt {
namespace {

thread_local Block* current = nullptr;

uint32_t bit(unsigned lane) { return 1u << lane; }

}  // namespace

Block* current_block() { return current; }
void set_current_block(Block* block) { current = block; }

size_t Chance::below(size_t n) {
  if (none_) return 0;
  uint64_t x = state_ += 0x9E3779B97F4A7C15u;  // SplitMix64
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return static_cast<size_t>((x ^ x >> 31) % n);
}

void ClusterBarrier::see() {
  if (live == 0 || arrived < live) return;
  arrived = 0;
  for (Block* const block : blocks) {
    if (block != nullptr) block->pass_cluster();
  }
}

void Block::begin(const Launch& launch, Size block_index, ClusterBarrier* cluster, Chance* chance,
                  const std::function<void()>* kernel) {
  current = this;
  kernel_ = kernel;
  cluster_ = cluster;
  chance_ = chance;
  shared_.begin(launch.dynamic_bytes, static_cast<uint8_t>(0xA5 + chance->below(256)));
  const unsigned threads = launch.block.x;
  fibers_.resize(threads);
  warps_.assign((threads + kLanes - 1) / kLanes, Warp());
  ready_.clear();
  error_.clear();
  live_ = threads;
  at_barrier_ = 0;
  yes_ = 0;
  begun_ = true;
  for (unsigned i = 0; i < threads; ++i) {
    Fiber& fiber = fibers_[i];
    fiber.view = {Size(i, 0), block_index, launch.block, launch.grid, rank_, launch.cluster};
    fiber.waits = Waits::kNothing;
    fiber.arrived = false;
    xpu_sim::prepare_context(&fiber.context, stacks_[i], Stacks::kBytes, &Block::entry, this);
    warps_[i / kLanes].live |= bit(i % kLanes);
    ready_.push_back(&fiber);
  }
}

bool Block::go() {
  bool any = false;
  while (!ready_.empty() && error_.empty()) {
    std::swap(ready_.front(), ready_[chance_->below(ready_.size())]);
    running_ = ready_.front();
    ready_.pop_front();
    any = true;
    xpu_sim::switch_context(&scheduler_, &running_->context);
    running_ = nullptr;
  }
  return any;
}

void Block::entry(void* block) {
  xpu_sim::enter_context();
  Block& self = *static_cast<Block*>(block);
  (*self.kernel_)();
  self.returned();
  xpu_sim::abandon_context(&self.scheduler_);
}

void Block::fail(const std::string& what) {
  error_ = location(*running_) + ": " + what;
  xpu_sim::abandon_context(&scheduler_);
}

void Block::returned() {
  Fiber& fiber = *running_;
  fiber.waits = Waits::kOver;
  --live_;
  const size_t lane = fiber.view.thread.x % kLanes, first = fiber.view.thread.x - lane;
  Warp& warp = warps_[first / kLanes];
  warp.live &= ~bit(static_cast<unsigned>(lane));
  for (Meeting& meeting : warp.meetings) see(warp, first, meeting);
  see_block();
  --cluster_->live;
  if (fiber.arrived) --cluster_->arrived;
  cluster_->see();
}

void Block::wait(Waits what) {
  running_->waits = what;
  xpu_sim::switch_context(&running_->context, &scheduler_);
}

void Block::wake(Fiber& fiber) {
  if (&fiber != running_) ready_.push_back(&fiber);
  fiber.waits = Waits::kNothing;
}

Answer Block::meet_block(bool yes) {
  yes_ += yes ? 1 : 0;
  ++at_barrier_;
  Fiber& own = *running_;
  own.waits = Waits::kBlock;
  see_block();
  if (own.waits == Waits::kBlock) wait(Waits::kBlock);
  return {static_cast<unsigned>(own.answer >> 1), (own.answer & 1) != 0};
}

void Block::see_block() {
  if (live_ == 0 || at_barrier_ < live_) return;
  const uint64_t answer = yes_ << 1 | (yes_ == at_barrier_ ? 1u : 0u);
  at_barrier_ = 0;
  yes_ = 0;
  for (Fiber& fiber : fibers_) {
    if (fiber.waits != Waits::kBlock) continue;
    fiber.answer = answer;
    wake(fiber);
  }
}

uint64_t Block::meet_warp(Kind kind, uint32_t mask, uint64_t value, unsigned from) {
  Fiber& own = *running_;
  const unsigned lane = own.view.thread.x % kLanes;
  const size_t first = own.view.thread.x - lane;
  if ((mask & bit(lane)) == 0) fail("is not in the mask of the lanes that it wants to meet");
  Warp& warp = warps_[first / kLanes];
  Meeting& meeting = meeting_of(warp, mask);
  if (meeting.arrived == 0) {
    meeting.kind = kind;
    meeting.mask = mask;
  } else if (meeting.kind != kind) {
    fail("lanes of a warp meet at different instructions");
  }
  meeting.arrived |= bit(lane);
  meeting.value[lane] = value;
  meeting.from[lane] = from;
  own.waits = Waits::kWarp;
  see(warp, first, meeting);
  if (own.waits == Waits::kWarp) wait(Waits::kWarp);
  return own.answer;
}

// The one that lanes of this mask have begun, or else one to begin: every lane is in one at most.
Block::Meeting& Block::meeting_of(Warp& warp, uint32_t mask) {
  Meeting* free = nullptr;
  for (Meeting& meeting : warp.meetings) {
    if (meeting.arrived != 0 && meeting.mask == mask) return meeting;
    if (meeting.arrived == 0 && free == nullptr) free = &meeting;
  }
  return *free;
}

void Block::see(Warp& warp, size_t first, Meeting& meeting) {
  if (meeting.arrived == 0 || meeting.arrived != (meeting.mask & warp.live)) return;
  const uint32_t came = meeting.arrived;
  meeting.arrived = 0;
  uint64_t votes = 0;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if ((came & bit(lane)) != 0 && meeting.value[lane] != 0) votes |= bit(lane);
  }
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if ((came & bit(lane)) == 0) continue;
    Fiber& fiber = fibers_[first + lane];
    if (meeting.kind == Kind::kVote) {
      fiber.answer = votes;
    } else {  // from a lane that did not come, anything
      const unsigned from = meeting.from[lane];
      fiber.answer = (came & bit(from)) != 0 ? meeting.value[from] : 0xBAD0BAD0BAD0BAD0u;
    }
    wake(fiber);
  }
}

void Block::arrive_cluster() {
  if (running_->arrived) fail("arrives twice at the cluster's barrier");
  running_->arrived = true;
  ++cluster_->arrived;
  cluster_->see();
}

void Block::wait_cluster() {
  // `arrived` is taken back when all pass.
  if (running_->arrived) wait(Waits::kCluster);
}

void Block::pass_cluster() {
  for (Fiber& fiber : fibers_) {
    if (fiber.waits == Waits::kOver) continue;
    fiber.arrived = false;
    if (fiber.waits == Waits::kCluster) wake(fiber);
  }
}

void* Block::shared_of(void* own, unsigned rank) {
  Block* const other = rank < kMaxCluster ? cluster_->blocks[rank] : nullptr;
  if (other == nullptr) fail("reaches for block " + std::to_string(rank) + " of a cluster that has fewer");
  const std::string what = "reaches for the memory of block " + std::to_string(rank) + " of its cluster, which ";
  if (!other->begun_) fail(what + "may not have started");
  if (other->over()) fail(what + "has ended");
  void* const theirs = shared_.counterpart(own, other->shared_);
  if (theirs == nullptr) fail("asks for the counterpart of what is not in shared memory");
  return theirs;
}

std::string Block::location(const Fiber& fiber) const {
  return "thread " + std::to_string(fiber.view.thread.x) + " of block " + std::to_string(fiber.view.block.x) +
         (fiber.view.block.y == 0 ? "" : "," + std::to_string(fiber.view.block.y));
}

std::string Block::standstill() const {
  std::string found;
  const char* const names[] = {"", "for other lanes", "at __syncthreads", "at the cluster's barrier"};
  for (const Waits kind : {Waits::kWarp, Waits::kBlock, Waits::kCluster}) {
    unsigned count = 0;
    const Fiber* first = nullptr;
    for (const Fiber& fiber : fibers_) {
      if (fiber.waits != kind) continue;
      if (count++ == 0) first = &fiber;
    }
    if (count == 0) continue;
    found += (found.empty() ? "" : "; ") + std::to_string(count) + " wait " + names[static_cast<int>(kind)] +
             " (first: " + location(*first) + ")";
  }
  return found;
}

}  // namespace simt
