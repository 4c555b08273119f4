// CPU paths of the kernels as in wrappers, and the processor time of both.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <numeric>
#include <vector>

#include "xpu_sim/host.h"

__attribute__((global)) void scale_rows(const float* x, float* y, int rows, int width);
__attribute__((global)) void free_blocks(const int* lens, const bool* stop, int* tables, int* freed, int slots,
                                         int width);
__attribute__((global)) void advance_slots(const int64_t* drafts, const int64_t* targets, int64_t* steps, int* lens,
                                           bool* stop, int* accepted, int slots, int width);
__attribute__((global)) void sum_rows(const int* x, int* sums, int rows, int width);
__attribute__((global)) void pad_offsets(const int* lens, const int* sums, int64_t* ids, int batch, int longest);

namespace cpu {

void scale_rows(const float* x, float* y, int rows, int width) {
  for (int i = 0; i < rows * width; ++i) y[i] = x[i] * 0.5f;
}

void free_blocks(const int* lens, const bool* stop, int* tables, int* freed, int slots, int width) {
  for (int slot = 0; slot < slots; ++slot) {
    for (int b = 0; b < width; ++b) {
      if (!stop[slot] && b * 64 < lens[slot]) continue;
      freed[slot * width + b] = tables[slot * width + b];
      tables[slot * width + b] = -1;
    }
  }
}

void advance_slots(const int64_t* drafts, const int64_t* targets, int64_t* steps, int* lens, bool* stop, int* accepted,
                   int slots, int width) {
  for (int slot = 0; slot < slots; ++slot) {
    if (stop[slot]) continue;
    int n = 0;
    while (n < width - 1 && drafts[slot * width + n] == targets[slot * width + n]) ++n;
    steps[slot] += n + 1;
    lens[slot] += n + 1;
    stop[slot] = targets[slot * width + n] == 2;
    accepted[slot] = n;
  }
}

void sum_rows(const int* x, int* sums, int rows, int width) {
  for (int row = 0; row < rows; ++row) sums[row] = std::accumulate(x + row * width, x + (row + 1) * width, 0);
}

void pad_offsets(const int* lens, const int* sums, int64_t* ids, int batch, int longest) {
  for (int b = 0; b < batch; ++b) {
    for (int i = 0; i < lens[b]; ++i) ids[sums[b] + i] = static_cast<int64_t>(b) * longest + i;
  }
}

}  // namespace cpu

namespace {

double now() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

// The shortest of several runs, in microseconds.
template <class F>
double time_of(F run) {
  run();
  double best = 1e30;
  const double until = now() + 2e5;
  for (int i = 0; i < 3 || now() < until; ++i) {
    const double start = now();
    run();
    best = std::min(best, now() - start);
  }
  return best;
}

template <class T>
T* filled(size_t n, T (*value)(size_t)) {
  T* const p = xpu_sim::gm_alloc<T>(n, "array");
  for (size_t i = 0; i < n; ++i) p[i] = value(i);
  return p;
}

const char* only = nullptr;

template <class F, class G>
void compare(const char* name, F on_device, G on_host) {
  if (only && std::strcmp(only, name) != 0) return;
  std::printf("%s %.3f %.3f\n", name, time_of(on_device), time_of(on_host));
}

}  // namespace

// Prints name, kernel and CPU microseconds of all cases or the named one.
int main(int argc, char** argv) {
  if (argc > 1) only = argv[1];
  constexpr int kRows = 32, kWidth = 32768, kSlots = 256, kBlocks = 128, kDrafts = 6;
  const auto one = [](size_t i) { return static_cast<int>(i % 100); };
  const auto token = [](size_t i) { return static_cast<int64_t>(i % 7 + 3); };
  const auto never = [](size_t) { return false; };
  const auto stopped = [](size_t i) { return i % 4 == 0; };
  float* const x = filled<float>(kRows * kWidth, [](size_t i) { return static_cast<float>(i % 100); });
  float* const y = xpu_sim::gm_alloc<float>(kRows * kWidth, "y");
  compare("scale_rows", [=] { xpu_sim::launch(&scale_rows, 12, 64)(x, y, kRows, kWidth); },
          [=] { cpu::scale_rows(x, y, kRows, kWidth); });
  int* const lens = filled<int>(kSlots, [](size_t i) { return static_cast<int>(i % 100 * 64 + 7); });
  bool* const stop = filled<bool>(kSlots, stopped);
  int *const tables = filled<int>(kSlots * kBlocks, one), *const freed = filled<int>(kSlots * kBlocks, one);
  compare("free_blocks", [=] { xpu_sim::launch(&free_blocks, 12, 64)(lens, stop, tables, freed, kSlots, kBlocks); },
          [=] { cpu::free_blocks(lens, stop, tables, freed, kSlots, kBlocks); });
  int64_t *const drafts = filled<int64_t>(kSlots * kDrafts, token), *const steps = filled<int64_t>(kSlots, token);
  bool* const running = filled<bool>(kSlots, never);
  int* const accepted = filled<int>(kSlots, one);
  const auto advance = [=](auto f) { f(drafts, drafts, steps, lens, running, accepted, kSlots, kDrafts); };
  compare("advance_slots", [=] { advance(xpu_sim::launch(&advance_slots, 12, 64)); },
          [=] { advance(&cpu::advance_slots); });
  int *const ints = filled<int>(kRows * kWidth, one), *const sums = filled<int>(kRows, one);
  compare("sum_rows", [=] { xpu_sim::launch(&sum_rows, 12, 64)(ints, sums, kRows, kWidth); },
          [=] { cpu::sum_rows(ints, sums, kRows, kWidth); });
  constexpr int kLongest = 512;
  int* const lengths = filled<int>(kSlots, [](size_t i) { return static_cast<int>(i * 37 % kLongest); });
  int* const starts = filled<int>(kSlots, one);
  std::exclusive_scan(lengths, lengths + kSlots, starts, 0);
  int64_t* const ids = filled<int64_t>(kSlots * kLongest, token);
  compare("pad_offsets", [=] { xpu_sim::launch(&pad_offsets, 12, 64)(lengths, starts, ids, kSlots, kLongest); },
          [=] { cpu::pad_offsets(lengths, starts, ids, kSlots, kLongest); });
  return static_cast<int>(xpu_sim::finding_count() != 0);
}
