// Options of a launch. Everything is deterministic: the same options give the same run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace xpu_sim {

// When an asynchronous copy happens.
enum class DmaPolicy {
  eager,     // at once, as in production builds, whose compiler inserts every fence
  deferred,  // as late as allowed: at the fence. Until then the destination holds garbage
  random     // some of those pending, at each call into the runtime, chosen by the seed
};

// Source of fences: the author alone, or also the compiler, as in vendors' production builds: before each copy out of
// LM or SM, and before each barrier.
enum class Profile {
  as_built,    // as `xpu cc --profile` said for each file
  portable,
  production
};

// Unknown properties of the device, one flag each; the defaults are cautious, except where shipped kernels rely on the
// other reading.
struct Model {
  bool exit_counts_as_arrival = true;       // a core that has returned does not hold up a barrier
  bool barrier_is_fence = false;            // a barrier drains the stores and copies of those who meet
  bool dma_fifo = false;                    // a core's copies take effect in the order of issue
  bool sync_drains_all_kinds = false;       // GM2LM also waits for an earlier GM2SM_ASYNC, and so on
  bool lm_fence_frees_source = true;        // mfence_lm suffices to overwrite the source of LM2GM_ASYNC
  bool sync_store_is_visible = true;        // LM2GM, SM2GM: in GM for all to see when it returns
  bool store_to_dma_needs_fence = true;     // a scalar store to LM or SM is seen by a copy only after a fence
  bool differing_barriers_diverge = true;   // cores that meet from different lines are a finding
  bool nested_atomics_trap = true;          // loada on a second address before the first one's storea
  bool scalar_gm_is_coherent = true;        // no cache of the core's own is between its loads and stores and GM
  bool equal_stores_conflict = true;        // cores may not store the same value without a barrier between
  bool masked_stores_write_zero = true;  // vstore_..._mz: to the lanes that are masked off, which else keep theirs
  int gsm_stack_bytes = 0;  // of the 32 KB with 16 cores, if GSM has the rest; 0: whichever needs them
};

enum class GmAccess { read_write, read_only };

// Memory of the caller's that a launch may use as GM, in place.
struct GmSpan {
  const void* data = nullptr;
  size_t bytes = 0;
  const char* name = "";  // copied by register_gm; must outlive the launch otherwise
  GmAccess access = GmAccess::read_write;
  unsigned element = 1;  // bytes of an element: the unit in which conflicts are looked for
};

struct Options {
  uint64_t seed = 0;  // 0: cores and clusters in natural order; else a random order per epoch
  DmaPolicy dma = DmaPolicy::eager;
  int workers = 1;  // threads that share the clusters; checking builds use one
  double llsc_failure = 0.0;  // probability that storea fails for no reason
  double watchdog_seconds = 10.0;  // processor time of a launch; 0: no limit
  int poison = -1;  // 0..255: fill LM and SM with this byte before use
  Profile profile = Profile::as_built;
  bool keep_going = false;  // after a trap that leaves memory sound: a copy is left out, an access is done all the same
  bool halt_on_first = false;  // end the launch at the first finding of any kind, not only at a trap
  Model model;
  const char* name = nullptr;  // of the kernel in reports; default: its symbol
  const GmSpan* gm = nullptr;  // GM of this launch, besides what is allocated and registered
  size_t gm_count = 0;
};

// Default options of launches. Change them before the first launch.
Options& defaults();

// "seed=7,dma=random,llsc_failure=0.1,model.dma_fifo=1": changes the named options. Returns what is wrong with the
// text, or an empty string.
std::string parse_options(const std::string& text, Options* options);
// The text that gives these options from the initial ones.
std::string to_string(const Options& options);

}  // namespace xpu_sim
