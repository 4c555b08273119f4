// Every check, in one table: its name, and whether it ends the launch as the hardware's trap does.
#pragma once

namespace xpu_sim::rt {

// check(identifier, "name", ends the launch)
// clang-format off
#define XPU_SIM_CHECKS(check)                                                                                     \
  check(dma_overflow, "dma_overflow", true)               /* beyond LM, SM or the object there */                 \
  check(dma_len_zero, "dma_len_zero", true)                                                                       \
  check(dma_len_negative, "dma_len_negative", true)                                                               \
  check(dma_address, "dma_address", true)                 /* the local side is not in LM or SM as the name says */ \
  check(gm_out_of_bounds, "gm_out_of_bounds", true)                                                               \
  check(gm_read_only, "gm_read_only", true)                                                                       \
  check(gm_red_zone, "gm_red_zone", false)                /* found after the launch */                            \
  check(host_pointer, "host_pointer", true)               /* neither GM nor SM nor LM */                          \
  check(null_pointer, "null_pointer", true)                                                                       \
  check(lm_foreign, "lm_foreign", true)                   /* another core's LM */                                 \
  check(lm_object_overflow, "lm_object_overflow", true)                                                           \
  check(sm_object_overflow, "sm_object_overflow", true)                                                           \
  check(lm_budget, "lm_budget", false)                                                                            \
  check(sm_budget, "sm_budget", true)                                                                             \
  check(stack_overflow, "stack_overflow", true)                                                                   \
  check(read_in_flight, "read_in_flight", false)                                                                  \
  check(write_in_flight, "write_in_flight", false)                                                                \
  check(missing_fence, "missing_fence", false)                                                                    \
  check(race, "race", false)                                                                                      \
  check(cross_cluster_conflict, "cross_cluster_conflict", false)                                                  \
  check(uninitialised_read, "uninitialised_read", false)                                                          \
  check(narrow_store, "narrow_store", false)              /* a part of an element is written */                  \
  check(simd_unalign, "simd_unalign", true)                                                                       \
  check(ld_st_unalign, "ld_st_unalign", true)                                                                     \
  check(atom_nested_err, "atom_nested_err", true)                                                                 \
  check(barrier_divergence, "barrier_divergence", false)                                                          \
  check(deadlock, "deadlock", true)                                                                               \
  check(watchdog, "watchdog", true)                                                                               \
  check(group_shared_cores, "group_shared_cores", true)   /* GSM with more than one core per group */             \
  check(wrapper_type, "wrapper_type", false)              /* of the host's */                                     \
  check(invalid_handle, "invalid_handle", false)          /* of the host's */                                     \
  check(freed_memory, "freed_memory", true)                                                                       \
  check(bad_launch, "bad_launch", true)                                                                           \
  check(exception, "exception", true)                                                                             \
  check(memory_fault, "memory_fault", true)                                                                       \
  check(arithmetic_fault, "arithmetic_fault", true)                                                               \
  check(illegal_instruction, "illegal_instruction", true)                                                         \
  check(undefined_behaviour, "undefined_behaviour", false) /* UndefinedBehaviorSanitizer's others */
// clang-format on

enum class Check {
#define XPU_SIM_ENUMERATOR(id, name, ends) id,
  XPU_SIM_CHECKS(XPU_SIM_ENUMERATOR)
#undef XPU_SIM_ENUMERATOR
};

const char* name_of(Check check);
bool ends_launch(Check check);

}  // namespace xpu_sim::rt
