// Threads that share the work of a call.
#pragma once

#include <cstdint>

namespace specdec {

// Work that any number of threads does together: each runs it once and takes pieces until none is left.
class Job {
 public:
  virtual void run() = 0;

 protected:
  ~Job() = default;
};

// Runs a job on this thread and up to `threads` - 1 others; returns when it is done. Late threads are not waited for.
void share(int64_t threads, Job* job);

}  // namespace specdec
