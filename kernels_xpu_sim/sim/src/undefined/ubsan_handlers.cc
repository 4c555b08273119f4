// Functions called by code compiled with -fsanitize=undefined. UndefinedBehaviorSanitizer's library is not linked: a
// kernel's mistakes become findings, host code's are printed.
#include <cstdint>
#include <cstdio>
#include <string>

#include "../checker.h"
#include "../checks.h"
#include "../report.h"
#include "../worker.h"

namespace xpu_sim::rt {

namespace {

// The compiler's data about a check (compiler-rt: ubsan_handlers.h names the same fields).
struct Where {
  const char* file;
  uint32_t line, column;
};
struct Type {
  uint16_t kind, info;  // kind 0: integer, info: bit 0 signed, the rest log2 of the width
  char name[1];
};
struct OverflowData {
  Where where;
  const Type* type;
};
struct ShiftData {
  Where where;
  const Type *left, *right;
};
struct BoundsData {
  Where where;
  const Type *array, *index;
};
struct MismatchData {
  Where where;
  const Type* type;
  uint8_t log_alignment, kind;
};

using Value = uintptr_t;

void say(Check check, const Where& where, const std::string& message, Severity severity = Severity::defect) {
  const Core* const core = current();
  if (!core->worker) {
    std::fprintf(stderr, "%s:%u: runtime error: %s\n", where.file, where.line, message.c_str());
    return;
  }
  const Site site{where.file, static_cast<int>(where.line)};
  if (ends_launch(check)) trap(finding_at(check, *core, site, message));
  report_once(check, *core, site, [&] {
    Finding f = finding_at(check, *core, site, message);
    f.severity = severity;
    return f;
  }, severity);
}

// Of an integer of at most 64 bits.
int64_t signed_number(const Type* type, Value v) {
  const unsigned unused = 64 - (1u << (type->info >> 1));
  if (!(type->info & 1)) return static_cast<int64_t>(v);
  return static_cast<int64_t>(static_cast<uint64_t>(v) << unused) >> unused;
}

// Values wider than a register are passed by address.
std::string number(const Type* type, Value v) {
  if (type->kind != 0 || type->info >> 1 > 6) return "a value";
  return type->info & 1 ? std::to_string(signed_number(type, v)) : std::to_string(v);
}

void overflow(const OverflowData* d, const char* operation, Value a, Value b) {
  say(Check::undefined_behaviour, d->where,
      "signed overflow: " + number(d->type, a) + " " + operation + " " + number(d->type, b) + " does not fit " +
          d->type->name);
}

void mismatch(const MismatchData* d, Value address) {
  static constexpr const char* kKinds[] = {"load",          "store",       "reference binding",
                                           "member access", "member call", "constructor call",
                                           "downcast",      "downcast",    "upcast",
                                           "cast",          "cast",        "cast"};
  const std::string kind = d->kind < sizeof kKinds / sizeof *kKinds ? kKinds[d->kind] : "access";
  const Value alignment = Value{1} << d->log_alignment;
  if (address == 0) {
    return say(Check::null_pointer, d->where, kind + " through a null pointer of type " + d->type->name);
  }
  if (address & (alignment - 1)) {
    return say(Check::ld_st_unalign, d->where,
               text("%s of type %s at 0x%llx, which is not a multiple of %llu", kind.c_str(), d->type->name,
                    static_cast<unsigned long long>(address), static_cast<unsigned long long>(alignment)));
  }
  say(Check::undefined_behaviour, d->where, kind + " of type " + d->type->name + " beyond the end of its object");
}

}  // namespace

}  // namespace xpu_sim::rt

using namespace xpu_sim::rt;

#define XPU_SIM_HANDLER extern "C" __attribute__((used, visibility("hidden"))) void
#define XPU_SIM_OVERFLOW(NAME, OPERATION) \
  XPU_SIM_HANDLER __ubsan_handle_##NAME##_overflow(OverflowData* d, Value a, Value b) { overflow(d, OPERATION, a, b); }

XPU_SIM_OVERFLOW(add, "+")
XPU_SIM_OVERFLOW(sub, "-")
XPU_SIM_OVERFLOW(mul, "*")

XPU_SIM_HANDLER __ubsan_handle_divrem_overflow(OverflowData* d, Value a, Value b) {
  if (b == 0) return say(Check::arithmetic_fault, d->where, "division of " + number(d->type, a) + " by zero");
  overflow(d, "/", a, b);
}
XPU_SIM_HANDLER __ubsan_handle_negate_overflow(OverflowData* d, Value a) {
  say(Check::undefined_behaviour, d->where, "-(" + number(d->type, a) + ") does not fit " + d->type->name);
}
XPU_SIM_HANDLER __ubsan_handle_shift_out_of_bounds(ShiftData* d, Value a, Value b) {
  // Where the count is in range, it is the bits that are shifted out which C++ forbade before 2020: ~(-1 << n).
  const unsigned width = 1u << (d->left->info >> 1);
  const bool in_range = b < width;
  say(Check::undefined_behaviour, d->where,
      "shift of " + number(d->left, a) + " by " + number(d->right, b) + ", which " + d->left->name + " does not allow",
      in_range ? xpu_sim::Severity::notice : xpu_sim::Severity::defect);
}
XPU_SIM_HANDLER __ubsan_handle_out_of_bounds(BoundsData* d, Value index) {
  const std::string message = "index " + number(d->index, index) + " is out of bounds of " + d->array->name;
  Core* const core = current();
  const xpu_sim::Site site{d->where.file, static_cast<int>(d->where.line)};
  if (core->worker && checker->bad_index(*core, site, message, d->array->name, signed_number(d->index, index))) {
    return;
  }
  say(Check::undefined_behaviour, d->where, message);
}
XPU_SIM_HANDLER __ubsan_handle_type_mismatch_v1(MismatchData* d, Value address) { mismatch(d, address); }
XPU_SIM_HANDLER __ubsan_handle_vla_bound_not_positive(OverflowData* d, Value n) {
  say(Check::undefined_behaviour, d->where, "an array of " + number(d->type, n) + " elements");
}
XPU_SIM_HANDLER __ubsan_handle_load_invalid_value(OverflowData* d, Value v) {
  say(Check::undefined_behaviour, d->where, number(d->type, v) + std::string(" is not a value of ") + d->type->name);
}
XPU_SIM_HANDLER __ubsan_handle_pointer_overflow(Where* where, Value base, Value result) {
  say(Check::undefined_behaviour, *where,
      text("pointer arithmetic from 0x%llx to 0x%llx wraps", static_cast<unsigned long long>(base),
           static_cast<unsigned long long>(result)));
}
XPU_SIM_HANDLER __ubsan_handle_nonnull_arg(Where* where) {
  say(Check::null_pointer, *where, "a null pointer was passed where none is allowed");
}
XPU_SIM_HANDLER __ubsan_handle_nonnull_return_v1(Where*, Where* where) {
  say(Check::null_pointer, *where, "a null pointer was returned where none is allowed");
}
XPU_SIM_HANDLER __ubsan_handle_invalid_builtin(Where* where) {
  say(Check::undefined_behaviour, *where, "__builtin_clz or __builtin_ctz of 0");
}
XPU_SIM_HANDLER __ubsan_handle_builtin_unreachable(Where* where) {
  say(Check::illegal_instruction, *where, "__builtin_unreachable was reached");
}
XPU_SIM_HANDLER __ubsan_handle_missing_return(Where* where) {
  say(Check::illegal_instruction, *where, "a function ended without returning its value");
}
