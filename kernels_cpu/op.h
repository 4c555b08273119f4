// How a file of ops/ exports an op: it defines `void op(const OpArgs&, Context)`, then SPECDEC_OP(op, kUnlimited) or
// its own limits.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "specdec/contract.h"
#include "specdec/integers.h"
#include "specdec_ops/signature.h"
#include "threads.h"

namespace specdec::cpu {

// The most threads that an op may use.
using Context = int64_t;

constexpr List<Limit> kUnlimited;

// op.cc
int bind_op(const OpSignature& op, void (*launch)(const void* args, Context threads), const void* given, int count,
            void* plan);
int list_limits(const OpSignature& op, List<Limit> limits, void* map);

// Items that threads take one after the other.
template <class Body>
class Items final : public Job {
 public:
  Items(int64_t count, const Body& body) : count_(count), body_(body) {}

  void run() override {
    for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) body_(i);
  }

 private:
  const int64_t count_;
  const Body& body_;
  std::atomic<int64_t> next_{0};
};

constexpr int64_t kThreadShare = 50'000;  // ns of work that are worth another thread

// body(i) for i in [0, count), each of which takes some `ns`, on up to `threads` threads.
template <class Body>
void each(Context threads, int64_t count, int64_t ns, const Body& body) {
  const int64_t useful = std::min({threads, count, count * ns / kThreadShare});
  Items<Body> items(count, body);
  if (useful > 1) {
    share(useful, &items);
  } else {
    items.run();
  }
}

}  // namespace specdec::cpu
