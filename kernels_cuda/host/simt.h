// Runs CUDA kernels on the host to check results and synchronisation. Every thread is a fiber, every block of a cluster
// a machine thread, of which one runs at a time. The order of fibers and the initial shared memory depend on a seed: if
// a kernel's result does too, it lacks a barrier or reads uninitialised memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace simt {

struct Size {
  constexpr Size(unsigned x_ = 1, unsigned y_ = 1) : x(x_), y(y_) {}
  unsigned x, y;
};

// The running thread, as its kernel sees it. Threads and clusters lie along x.
struct Thread {
  Size thread, block, block_size, grid_size;
  unsigned rank, cluster_size;  // of the block in its cluster
};
const Thread& self();

// Of all threads of the block that have not returned, when all have come.
struct Answer {
  unsigned yes;  // threads
  bool all;
};
Answer meet_block(bool yes);

// Between the lanes of `mask` that have not returned: bit i, whether lane i says yes; the value of lane `from`.
uint32_t vote(uint32_t mask, bool yes);
uint64_t shuffle(uint32_t mask, uint64_t value, unsigned from);

// The cluster's barrier, in two halves.
void arrive_cluster();
void wait_cluster();

// The same shared variable of a block of the cluster, which must be running.
void* shared_of(void* own, unsigned rank);

void* dynamic_shared();
size_t dynamic_shared_bytes();

struct Launch {
  Size grid, block;
  size_t dynamic_bytes;  // of shared memory
  unsigned cluster;  // blocks
};

// Runs kernel() in every thread of the grid. Throws std::runtime_error, naming the threads, for deadlocks, different
// instructions at a rendezvous, and invalid shared memory.
void run(const Launch& launch, const std::function<void()>& kernel);

// Seed of later launches in any thread; 0: threads in order.
void set_seed(uint64_t seed);

}  // namespace simt
