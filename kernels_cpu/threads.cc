#include "threads.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

namespace specdec {
namespace {

// A thread looks for its next job for so long before it sleeps: the next product of a step comes sooner, and to wake a
// thread takes some 50 us.
constexpr std::chrono::microseconds kAwake{100};

// Whether something comes true within kAwake.
template <typename Condition>
bool soon(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + kAwake;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  return true;
}

// Threads that are never joined.
class Helpers {
 public:
  void run(int64_t helpers, Job* job) {
    const std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
    if (!turn.owns_lock()) return job->run();  // another thread's step has them
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      while (threads_ < helpers && add_thread()) {
      }
      job_ = job;
      wanted_ = std::min(helpers, threads_);
      ++jobs_;
      if (sleeping_ > 0) work_.notify_all();
    }
    job->run();
    std::unique_lock<std::mutex> lock(mutex_);
    job_ = nullptr;
    lock.unlock();
    soon([this] { return busy_ == 0; });
    lock.lock();
    done_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  // False: the system has no more. The job is then shared by fewer.
  bool add_thread() {
    try {
      std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {
      return false;
    }
    ++threads_;
    return true;
  }

  void serve() {
    const auto offered = [this] { return job_ != nullptr && wanted_ > 0; };
    for (uint64_t seen = 0;;) {
      const bool awake = soon([this, seen] { return jobs_ != seen; });
      std::unique_lock<std::mutex> lock(mutex_);
      if (!awake) {
        ++sleeping_;
        work_.wait(lock, offered);
        --sleeping_;
      }
      seen = jobs_;
      if (!offered()) continue;  // done already
      Job* const job = job_;
      --wanted_;
      ++busy_;
      lock.unlock();
      job->run();
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
    }
  }

  std::mutex turn_, mutex_;
  std::condition_variable work_, done_;
  std::atomic<uint64_t> jobs_{0};
  std::atomic<int64_t> busy_{0};
  Job* job_ = nullptr;
  int64_t threads_ = 0, wanted_ = 0, sleeping_ = 0;
};

struct Owned {
  pid_t process;
  Helpers helpers;
};

// This process's. A parent's are left to it: their threads are not here, and their locks may be held.
Helpers& helpers() {
  static std::atomic<Owned*> held{nullptr};
  Owned* now = held.load();
  if (now == nullptr || now->process != getpid()) {
    auto fresh = std::make_unique<Owned>();
    fresh->process = getpid();
    if (held.compare_exchange_strong(now, fresh.get())) now = fresh.release();
  }
  return now->helpers;
}

}  // namespace

void share(int64_t threads, Job* job) {
  if (threads > 1) {
    helpers().run(threads - 1, job);
  } else {
    job->run();
  }
}

}  // namespace specdec
