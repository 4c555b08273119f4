// Random numbers as a function of seed, purpose and position, so that one decision does not shift another.
#pragma once

#include <cstdint>

namespace xpu_sim::rt {

class Random {
 public:
  enum Purpose : uint64_t { core_order = 1, cluster_order = 2, dma_order = 3, llsc = 4, unwritten = 5 };

  Random(uint64_t seed, Purpose purpose, uint64_t position)
      : state_(mix(seed ^ mix(purpose ^ mix(position + 0x9E3779B97F4A7C15u)))) {}

  // SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).
  uint64_t next() { return mix(state_ += 0x9E3779B97F4A7C15u); }
  uint32_t below(uint32_t n) { return static_cast<uint32_t>((next() >> 32) * n >> 32); }

 private:
  static uint64_t mix(uint64_t z) {
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
  }
  uint64_t state_;
};

}  // namespace xpu_sim::rt
