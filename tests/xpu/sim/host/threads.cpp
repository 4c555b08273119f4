// Threads of the host: they launch at the same time, end, fork, and free what others use.
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <ctime>
#include <mutex>
#include <thread>

#include "check.h"

static bool good_sums(int workers = 1) {
  Gm<int> in(1000, "in", 0, 1), out(4, "out");
  Options options;
  options.workers = workers;
  return launch(cluster_sums, 4, 16, options)(in, out, 1000) == ok && out[0] + out[1] + out[2] + out[3] == 499500;
}

// The exit status of a child that runs f, which must not take long; -1: it was ended.
template <class F>
static int in_a_child(F f) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(f() ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

HOST_TEST(threads_launch_at_the_same_time) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int round = 0; round < 500; ++round) {
        Gm<int> in(1000, "in", t, 1), out(4, "out");
        EXPECT(launch(cluster_sums, 4, 16)(in, out, 1000) == ok);
        EXPECT(out[0] + out[1] + out[2] + out[3] == 499500 + 1000 * t);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

HOST_TEST(threads_share_the_workers) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int round = 0; round < 50; ++round) EXPECT(good_sums(1 + (t + round) % 4));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// What is wrong in one thread is not another's.
HOST_TEST(findings_are_of_the_threads_own_launch) {
  std::vector<std::thread> threads;
  Options brief;
  brief.watchdog_seconds = 0.2;
  threads.emplace_back([&brief] {
    EXPECT(launch(spin, 1, 4, brief)() == ended);
    const std::vector<Finding> all = take_last_findings();
    EXPECT(all.size() == 1 && all[0].check == "watchdog");
  });
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([] {
      for (int round = 0; round < 100; ++round) {
        EXPECT(launch(null_store, 2, 4)(nullptr) == ended);
        const std::vector<Finding> all = take_last_findings();
        EXPECT(all.size() == 1 && all[0].check == "null_pointer" && take_last_findings().empty());
      }
    });
  }
  threads.emplace_back([] {
    for (int round = 0; round < 300; ++round) {
      EXPECT(good_sums());
      EXPECT(take_last_findings().empty());
    }
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT(finding_count() == 0);
  EXPECT(launch(nothing, 0, 1)() == refused);
  EXPECT(take_last_findings().size() == 1 && finding_count() == 0);
}

HOST_TEST(a_child_launches_whatever_the_parents_threads_did) {
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([t, &done] {
      while (!done) {
        good_sums();
        if (t > 0) launch(null_store, 1, 1)(nullptr);
      }
    });
  }
  for (int round = 0; round < 40 && !failed_line; ++round) {
    EXPECT(in_a_child([round] { return good_sums(1 + round % 2) && launch(null_store, 1, 1)(nullptr) == ended; }) == 0);
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  take_findings();
}

// Whatever its frames have left on the stacks that the child now uses.
HOST_TEST(a_child_has_the_stacks_of_a_thread_in_a_kernel) {
  Gm<int> flags(2, "flags");
  volatile int* const words = flags;
  words[0] = words[1] = 0;
  std::thread other([&] { EXPECT(launch(wait_among_arrays, 1, 1)(flags) == ok); });
  while (!words[0]) std::this_thread::yield();
  EXPECT(in_a_child([] {
    bool good = true;
    for (int round = 0; round < 10; ++round) good &= good_sums() && launch(null_store, 2, 4)(nullptr) == ended;
    return good;
  }) == 0);
  words[1] = 1;
  other.join();
}

static bool launches_in_descendants(int generations) {
  return good_sums(32) &&
         (generations == 0 || in_a_child([=] { return launches_in_descendants(generations - 1); }) == 0);
}

HOST_TEST(children_of_children_have_workers) { EXPECT(launches_in_descendants(3)); }

HOST_TEST(a_launch_is_shared_by_as_many_threads_as_can) {
  constexpr int kOthers = 50;  // of the 64 that may launch
  std::mutex mutex;
  std::condition_variable changed;
  int ready = 0;
  bool done = false;
  std::vector<std::thread> others;
  for (int t = 0; t < kOthers; ++t) {
    others.emplace_back([&] {
      EXPECT(launch(nothing, 1, 1)() == ok);
      std::unique_lock<std::mutex> lock(mutex);
      ++ready;
      changed.notify_all();
      changed.wait(lock, [&] { return done; });
    });
  }
  {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return ready == kOthers; });
  }
  EXPECT(good_sums(32));
  {
    const std::lock_guard<std::mutex> lock(mutex);
    done = true;
  }
  changed.notify_all();
  for (std::thread& thread : others) thread.join();
  EXPECT(good_sums(32));
}

HOST_TEST(threads_leave_no_memory) {
  const auto used = [] {
    const struct mallinfo2 info = mallinfo2();  // nothing under AddressSanitizer
    return info.uordblks + info.hblkhd;
  };
  const auto end_threads = [](int n) {
    for (int i = 0; i < n; ++i) std::thread([] { EXPECT(launch(nothing, 1, 1)() == ok); }).join();
  };
  end_threads(20);
  const size_t before = used();
  end_threads(100);
  EXPECT(used() < before + (1 << 20));
}

HOST_TEST(memory_is_unregistered_during_a_launch) {
  static int data[16];
  Gm<int> flags(2, "flags"), out(64, "out");
  const std::string name(64, 'n');
  register_gm(data, sizeof data, name.c_str());
  volatile int* const started = flags;
  started[0] = started[1] = 0;
  std::thread other([&] {
    while (!started[0]) std::this_thread::yield();
    unregister_gm(data, sizeof data);
    for (int i = 0; i < 100; ++i) std::string(64 + i % 2, 'x').swap(*new std::string);  // where its name may have been
    started[1] = 1;
  });
  EXPECT(launch(wait_and_read, 1, 1)(flags, data, out, 17) == ended);
  other.join();
  const Finding f = found("gm_out_of_bounds")[0];
  EXPECT(f.object == name && f.message.find(name) != std::string::npos);
}

static void take_long(const Finding&) {
  const auto seconds = [] {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  };
  for (const double end = seconds() + 0.8; seconds() < end;) {
  }
}

// The watchdog stops kernels, not the runtime while it reports one.
HOST_TEST(findings_may_take_their_time) {
  Options brief;
  brief.watchdog_seconds = 0.2;
  on_finding(&take_long);
  EXPECT(launch(null_store, 1, 1, brief)(nullptr) == ended);
  on_finding(nullptr);
  found("null_pointer");
  EXPECT(launch(spin, 1, 1, brief)() == ended);
  found("watchdog");
}

HOST_TEST(listeners_may_use_the_emulator) {
  alarm(60);
  on_finding([](const Finding&) { gm_free(gm_alloc<int>(1)); });
  Gm<int> out(16, "out");
  launch(outside_of_bounds_by_store, 1, 1)(out, 16);
  EXPECT(take_findings().size() == 1);
  on_finding(nullptr);
}
