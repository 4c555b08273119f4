#include "thread_pool.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#include "forks.h"
#include "report.h"

namespace xpu_sim::rt {

namespace {

// Threads are kept between launches and never joined: they sleep, and the process ends them. A launch does not wait for
// one that has not come when all clusters are taken: on a busy machine that can take many times as long as the launch.
class ThreadPool {
 public:
  void run(int workers, Launch* launch, Counters* total) {
    std::unique_lock<std::mutex> lock(mutex_);
    idle_.wait(lock, [this] { return launch_ == nullptr; });  // another thread's launch
    while (threads_ < workers - 1 && add_thread()) {
    }
    launch_ = launch;
    total_ = total;
    wanted_ = std::min(workers - 1, threads_);
    ++ticket_;
    work_.notify_all();
    lock.unlock();
    Worker& mine = this_worker();
    mine.run(launch);
    lock.lock();
    merge(total, mine.counters);
    wanted_ = 0;
    done_.wait(lock, [this] { return busy_ == 0; });
    launch_ = nullptr;
    idle_.notify_one();
  }

 private:
  // False: the system has no more. The launch is then shared by fewer.
  bool add_thread() {
    try {
      std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {
      return false;
    }
    ++threads_;
    return true;
  }

  // nullptr: as many threads launch as can. The others then do this one's clusters.
  static Worker* worker_if_any() {
    try {
      return &this_worker();
    } catch (const std::exception&) {
      return nullptr;
    }
  }

  void serve() {
    uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      work_.wait(lock, [&] { return ticket_ != seen && wanted_ > 0; });
      seen = ticket_;
      --wanted_;
      ++busy_;
      Launch* const launch = launch_;
      lock.unlock();
      Worker* const mine = worker_if_any();
      if (mine) mine->run(launch);
      lock.lock();
      if (mine) merge(total_, mine->counters);
      if (--busy_ == 0) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable work_, done_, idle_;
  Launch* launch_ = nullptr;
  Counters* total_ = nullptr;
  int threads_ = 0, wanted_ = 0, busy_ = 0;
  uint64_t ticket_ = 0;
};

}  // namespace

void run_on(int workers, Launch* launch, Counters* counters) {
  static ThreadPool* pool = nullptr;
  static unsigned generation = 0;
  ThreadPool* mine;
  {
    const std::lock_guard<std::mutex> lock(lock_of(Shared::pool));
    if (!pool || generation != fork_generation()) {
      pool = new ThreadPool;  // the parent's is left: its threads are not here
      generation = fork_generation();
    }
    mine = pool;
  }
  mine->run(workers, launch, counters);
}

}  // namespace xpu_sim::rt
