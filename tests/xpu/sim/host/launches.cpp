// Launching: limits, shapes, order, workers, and that the emulator survives its kernels.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <set>
#include <stdexcept>

#include "check.h"
#include "xpu_sim/kernel/dma.h"

HOST_TEST(refused_launches) {
  for (int clusters : {0, -1, 256}) {
    EXPECT(launch(nothing, clusters, 64)() == refused);
    const Finding f = found("bad_launch")[0];
    EXPECT(f.message.find("1 to 255 clusters, got " + std::to_string(clusters)) != std::string::npos);
    EXPECT(f.kernel == "nothing");
  }
  for (int cores : {0, 65}) {
    EXPECT(launch(nothing, 1, cores)() == refused);
    EXPECT(found("bad_launch")[0].message.find("1 to 64 cores") != std::string::npos);
  }
  Options options;
  options.workers = 0;
  EXPECT(launch(nothing, 1, 1, options)() == refused);
  found("bad_launch");
  options.workers = 1;
  for (options.poison = -2; options.poison != -1; options.poison = options.poison == -2 ? 256 : -1) {
    EXPECT(launch(nothing, 1, 1, options)() == refused);
    EXPECT(found("bad_launch")[0].message.find("poison of -1 to 255") != std::string::npos);
  }
  for (int bytes : {-1, 32769}) {
    options.model.gsm_stack_bytes = bytes;
    EXPECT(launch(nothing, 1, 16, options)() == refused);
    EXPECT(found("bad_launch")[0].message.find("model.gsm_stack_bytes of 0 to 32768") != std::string::npos);
  }
  Gm<int> out(1, "out");
  if (launch(launch_inside, 1, 1)(out) == ok) {
    EXPECT(out[0] == refused);
    EXPECT(found("bad_launch")[0].message.find("cannot launch") != std::string::npos);
  } else {
    found("host_pointer");  // the strict build sees the kernel read the host's options first
  }
}

HOST_TEST(shapes) {
  const int shapes[][2] = {{1, 1}, {1, 16}, {1, 64}, {12, 64}, {255, 64}, {255, 1}, {3, 5}, {40, 17}};
  for (const auto& shape : shapes) {
    for (uint64_t seed : {0, 1, 99}) {
      const size_t n = static_cast<size_t>(shape[0] * shape[1]);
      Gm<int> in(n, "in", 5), out(n, "out");
      Options options;
      options.seed = seed;
      options.dma = static_cast<DmaPolicy>(seed % 3);
      EXPECT(launch(add_ids, shape[0], shape[1], options)(in, out) == ok);
      for (size_t i = 0; i < n; ++i) {
        const int cluster = static_cast<int>(i) / shape[1], core = static_cast<int>(i) % shape[1];
        if (out[i] != 5 + 1000 * cluster + core) EXPECT(false);
      }
    }
  }
}

HOST_TEST(long_and_empty_rows) {
  for (int64_t n : {0, 1, 16, 511, 513, 100003}) {
    Gm<float> x(static_cast<size_t>(n), "x", 1.0f, 0.5f), y(static_cast<size_t>(n), "y", 3.0f);
    EXPECT(launch(scale_add<float>, 12, 64)(x, y, n, 2.0f) == ok);
    for (int64_t i = 0; i < n; ++i) {
      if (y[static_cast<size_t>(i)] != 3.0f + 2.0f * (1.0f + 0.5f * static_cast<float>(i))) EXPECT(false);
    }
    EXPECT(launch(scale_add<float>, 1, 1)(x, y, n, 0.0f) == ok);
  }
}

HOST_TEST(zero_length_tiles) {
  const int lengths[] = {0, 1, 0, 0, 64, 65, 0, 300, 128, 0};
  Gm<int> in(558, "in", 7, 1), ends(11, "ends");
  for (size_t i = 0; i < 10; ++i) ends[i + 1] = (i ? ends[i] : ends[0] = 0) + lengths[i];
  for (const auto& shape : {std::pair<int, int>(1, 1), {1, 16}, {255, 64}}) {
    Gm<int> out(558, "out");
    EXPECT(launch(copy_rows, shape.first, shape.second)(in, out, ends, 10) == ok);
    EXPECT(std::memcmp(in.data, out.data, 558 * sizeof(int)) == 0);
    EXPECT(launch(copy_rows, shape.first, shape.second)(in, out, ends, 0) == ok);
  }
  EXPECT(launch(read_all, 1, 1)(in, ends, 0) == ended);
  EXPECT(found("dma_len_zero")[0].message.find("guard it: if (n > 0)") != std::string::npos);
}

HOST_TEST(sixteen_cores_have_all_of_their_groups_memory) {
  Gm<int> in(6000, "in", 0, 1), out(6000 * 17, "out");
  EXPECT(launch(large_tile, 1, 16)(in, out, 6000) == ok && finding_count() == 0);
  EXPECT(out[5999] == 5999 && out[6000 * 15 + 7] == 22);
#if defined(__SANITIZE_ADDRESS__)
  constexpr bool frames_are_true = false;  // they have gaps
#else
  constexpr bool frames_are_true = true;
#endif
  EXPECT(last_counters().lm_high >= 24000);
  for (int cores : {1, 8, 17}) {  // the memory is divided for a full launch, unless there is one core per group
    EXPECT(launch(large_tile, 1, cores)(in, out, 6000) == ok);
    if (frames_are_true) EXPECT(found("lm_budget")[0].message.find("a core has 8192") != std::string::npos);
  }
}

HOST_TEST(arguments) {
  Gm<int> out(1, "out");
  EXPECT(launch(many_arguments, 1, 1)(nullptr, 1, 2, true, Pair{3, 4.5}, out, 6, out) == ok);
  EXPECT(out[0] == 1);
}

static std::vector<int> order_of(uint64_t seed) {
  Gm<int> out(2 * 2 * 16, "out");
  Options options;
  options.seed = seed;
  EXPECT(launch(core_order, 2, 16, options)(out) == ok);
  return std::vector<int>(out.data, out.data + out.count);
}

HOST_TEST(order_of_cores) {
  const std::vector<int> natural = order_of(0);
  for (int i = 0; i < 64; ++i) EXPECT(natural[static_cast<size_t>(i)] == i % 16);
  std::set<std::vector<int>> orders;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const std::vector<int> order = order_of(seed);
    EXPECT(order == order_of(seed));
    orders.insert(order);
    EXPECT(std::set<int>(order.begin(), order.begin() + 16).size() == 16);
    // Another order in the next epoch, and in the next cluster.
    EXPECT(!std::equal(order.begin(), order.begin() + 16, order.begin() + 16));
    EXPECT(!std::equal(order.begin(), order.begin() + 32, order.begin() + 32));
  }
  EXPECT(orders.size() == 20);
}

HOST_TEST(workers_give_the_same) {
  Gm<int> in(10007, "in", 1, 1), alone(255, "alone"), shared(255, "shared");
  Options options;
  for (int clusters : {1, 2, 12, 255}) {
    EXPECT(launch(cluster_sums, clusters, 64, options)(in, alone, 10007) == ok);
    const Counters one = last_counters();
    for (int workers : {2, 3, 8}) {
      options.workers = workers;
      EXPECT(launch(cluster_sums, clusters, 64, options)(in, shared, 10007) == ok);
      EXPECT(std::memcmp(alone.data, shared.data, static_cast<size_t>(clusters) * sizeof(int)) == 0);
      EXPECT(last_counters().dma_bytes[gm2lm] == one.dma_bytes[gm2lm] && last_counters().barriers == one.barriers);
    }
    options.workers = 1;
  }
  options.workers = 4;
  EXPECT(launch(null_store, 100, 4, options)(nullptr) == ended);
  found("null_pointer");
  EXPECT(launch(cluster_sums, 12, 64, options)(in, shared, 10007) == ok);
}

HOST_TEST(a_forked_child_launches) {
  Gm<int> in(100, "in", 0, 1), out(2, "out");
  Options options;
  options.workers = 2;
  EXPECT(launch(cluster_sums, 2, 16, options)(in, out, 100) == ok);
  const pid_t child = fork();
  if (child == 0) {
    options.watchdog_seconds = 0.5;
    const bool good = launch(cluster_sums, 2, 16, options)(in, out, 100) == ok && out[1] == 3725 &&
                      launch(spin, 1, 1, options)() == ended;
    _exit(good ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

HOST_TEST(life_goes_on_after_a_fault) {
  Gm<int> in(4096, "in", 0, 1), out(64, "out");
  Options options;
  options.watchdog_seconds = 0.3;
  for (int round = 0; round < 3; ++round) {
    EXPECT(launch(null_store, 2, 64, options)(nullptr) == ended);
    found("null_pointer");
    EXPECT(launch(throw_something, 2, 64, options)() == ended);
    found("exception");
    EXPECT(launch(read_all, 1, 4, options)(in, out, 256) == ended);
    EXPECT(found("gm_out_of_bounds")[0].object == "out");
    EXPECT(launch(cluster_sums, 4, 64, options)(in, out, 4096) == ok);
    EXPECT(out[0] + out[1] + out[2] + out[3] == 4096 * 4095 / 2);
  }
  EXPECT(launch(spin, 1, 8, options)() == ended);
  EXPECT(found("watchdog")[0].message.find(": running") != std::string::npos);
  EXPECT(launch(cluster_sums, 4, 64, options)(in, out, 4096) == ok);
}

HOST_TEST(exit_is_arrival_or_not) {
  Gm<int> out(3, "out");
  EXPECT(launch(leave_early, 1, 8)(out) == ok);
  EXPECT(out[0] == 1 && out[2] == 1);
  Options options;
  options.model.exit_counts_as_arrival = false;
  EXPECT(launch(leave_early, 1, 8, options)(out) == ended);
  const Finding f = found("deadlock")[0];
  EXPECT(f.message.find("cores 0-2: waits at") != std::string::npos);
  EXPECT(f.message.find("cores 3-7: returned") != std::string::npos);
  EXPECT(f.replay == "seed=0,model.exit_counts_as_arrival=0");
}

HOST_TEST(a_deadlock_names_each_place_once) {
  Options options;
  options.model.exit_counts_as_arrival = false;
  EXPECT(launch(leave_in_turns, 1, 64, options)(5) == ended);
  const std::string message = found("deadlock")[0].message;
  EXPECT(std::count(message.begin(), message.end(), '\n') == 2 && message.size() < 400);
  EXPECT(message.find("\n    cores 0, 2, 4, 6, 8, 10, 12, 14, ... (32 cores): waits at ") != std::string::npos);
  EXPECT(message.find("\n    cores 1, 3, 5, 7, 9, 11, 13, 15, ... (32 cores): returned") != std::string::npos);
}

HOST_TEST(builtins_outside_of_kernels) {
  int x = 0;
  std::string message;
  try {
    GM2LM(&x, &x, 4);
  } catch (const std::logic_error& e) {
    message = e.what();
  }
  EXPECT(message.find("launches.cpp") != std::string::npos && message.find("outside of a kernel") != std::string::npos);
}

static volatile std::sig_atomic_t own_faults = 0;

static void own_handler(int) {
  own_faults = own_faults + 1;
  _exit(own_faults == 1 ? 42 : 1);
}

HOST_TEST(faults_of_the_host_stay_its_own) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGSEGV, own_handler);
    launch(nothing, 1, 1)();
    std::raise(SIGSEGV);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 42);
}
