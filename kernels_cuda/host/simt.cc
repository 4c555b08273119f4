#include "simt.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "block.h"

namespace simt {
namespace {

// Throws for launches that no device accepts.
void check(const Launch& launch) {
  const bool clusters = launch.cluster >= 1 && launch.cluster <= kMaxCluster && launch.grid.x % launch.cluster == 0;
  const bool blocks = launch.grid.x >= 1 && launch.grid.y >= 1 && launch.grid.y <= 0xFFFF;
  if (clusters && blocks && launch.block.x >= 1 && launch.block.x <= kMaxThreads && launch.block.y == 1) return;
  throw std::runtime_error(
      "expected blocks of 1 to 1024 threads in clusters of 1 to 16 that divide the grid, got a "
      "grid of " +
      std::to_string(launch.grid.x) + " x " + std::to_string(launch.grid.y) + " blocks of " +
      std::to_string(launch.block.x) + " x " + std::to_string(launch.block.y) + " threads in clusters of " +
      std::to_string(launch.cluster));
}

// A machine thread with its block. call() runs a function on it and waits.
class Worker {
 public:
  explicit Worker(unsigned rank) : block(rank), thread_([this] { work(); }) {}
  ~Worker() {
    call(nullptr);
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void call(std::function<void()> task) {
    std::unique_lock<std::mutex> lock(mutex_);
    task_ = std::move(task);
    busy_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !busy_; });
  }

  Block block;

 private:
  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return busy_; });
      const bool last = task_ == nullptr;
      if (!last) task_();
      busy_ = false;
      changed_.notify_all();
      if (last) return;
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> task_;
  bool busy_ = false;
  std::thread thread_;
};

std::atomic<uint64_t> seed_of_launches = {0};

Size block_index_of(const Launch& launch, uint64_t block) {
  return Size(static_cast<unsigned>(block % launch.grid.x), static_cast<unsigned>(block / launch.grid.x));
}

// One launch at a time.
class Device {
 public:
  void run(const Launch& launch, const std::function<void()>& kernel) {
    const std::lock_guard<std::mutex> lock(mutex_);
    check(launch);
    while (workers_.size() < launch.cluster) workers_.push_back(std::make_unique<Worker>(workers_.size()));
    Chance chance(seed_of_launches);
    std::vector<uint64_t> clusters(uint64_t{launch.grid.x} * launch.grid.y / launch.cluster);
    std::iota(clusters.begin(), clusters.end(), uint64_t{0});
    for (size_t i = clusters.size(); i > 1; --i) std::swap(clusters[i - 1], clusters[i - 1 - chance.below(i)]);
    std::string error;
    if (launch.cluster == 1) {
      workers_[0]->call([&] {
        for (const uint64_t index : clusters) {
          if (error.empty()) error = run_alone(launch, index, &chance, kernel);
        }
      });
    } else {
      for (const uint64_t index : clusters) {
        if (error.empty()) error = run_cluster(launch, index, &chance, kernel);
      }
    }
    for (const auto& worker : workers_) worker->block.end();
    if (!error.empty()) throw std::runtime_error(error);
  }

 private:
  std::string run_alone(const Launch& launch, uint64_t index, Chance* chance, const std::function<void()>& kernel) {
    Block& block = workers_[0]->block;
    ClusterBarrier barrier;
    barrier.live = launch.block.x;
    barrier.blocks[0] = &block;
    block.begin(launch, block_index_of(launch, index), &barrier, chance, &kernel);
    block.go();
    return block.error().empty() && !block.over() ? block.standstill() : block.error();
  }

  std::string run_cluster(const Launch& launch, uint64_t index, Chance* chance, const std::function<void()>& kernel) {
    ClusterBarrier barrier;
    barrier.live = launch.block.x * launch.cluster;
    std::vector<unsigned> ranks(launch.cluster);
    std::iota(ranks.begin(), ranks.end(), 0u);
    for (size_t i = ranks.size(); i > 1; --i) std::swap(ranks[i - 1], ranks[i - 1 - chance->below(i)]);
    for (const unsigned rank : ranks) {
      workers_[rank]->block.end();
      barrier.blocks[rank] = &workers_[rank]->block;
    }
    for (bool over = false; !over;) {
      bool any = false;
      over = true;
      for (const unsigned rank : ranks) {
        Block& block = workers_[rank]->block;
        workers_[rank]->call([&] {
          const Size block_index = block_index_of(launch, index * launch.cluster + rank);
          if (!block.begun()) block.begin(launch, block_index, &barrier, chance, &kernel);
          any |= block.go();
        });
        if (!block.error().empty()) return block.error();
        over = over && block.over();
      }
      if (!over && !any) {
        std::string found;
        for (const unsigned rank : ranks) {
          if (!workers_[rank]->block.over()) found += (found.empty() ? "" : "; ") + workers_[rank]->block.standstill();
        }
        return found;
      }
    }
    return "";
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

// Never destroyed: threads of the machine may outlive static objects.
Device& device() {
  static Device* const device = new Device;
  return *device;
}

}  // namespace

const Thread& self() { return current_block()->running(); }
Answer meet_block(bool yes) { return current_block()->meet_block(yes); }
uint32_t vote(uint32_t mask, bool yes) {
  return static_cast<uint32_t>(current_block()->meet_warp(Block::Kind::kVote, mask, yes ? 1 : 0, 0));
}
uint64_t shuffle(uint32_t mask, uint64_t value, unsigned from) {
  return current_block()->meet_warp(Block::Kind::kShuffle, mask, value, from % kLanes);
}
void arrive_cluster() { current_block()->arrive_cluster(); }
void wait_cluster() { current_block()->wait_cluster(); }
void* shared_of(void* own, unsigned rank) { return current_block()->shared_of(own, rank); }
void* dynamic_shared() { return current_block()->shared().dynamic(); }
size_t dynamic_shared_bytes() { return current_block()->shared().dynamic_bytes(); }

void run(const Launch& launch, const std::function<void()>& kernel) { device().run(launch, kernel); }

void set_seed(uint64_t seed) { seed_of_launches = seed; }

}  // namespace simt
