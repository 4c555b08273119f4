#include "faults.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <pthread.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "checker.h"
#include "forks.h"
#include "report.h"
#include "worker.h"

#if defined(__x86_64__)

// Called as if by the interrupted instruction: preserves every register and the red zone.
extern "C" __attribute__((visibility("hidden"))) void xpu_sim_interrupt();
extern "C" {
__attribute__((used, visibility("hidden"))) uint32_t xpu_sim_saved_bytes = 0;  // by xsave; 0: use fxsave
__attribute__((used, visibility("hidden"))) void xpu_sim_interrupted() {
  xpu_sim::rt::Worker* const worker = xpu_sim::rt::current()->worker;
  worker->give_way();
}
}
__asm__(
    ".text\n"
    ".hidden xpu_sim_interrupt\n"
    ".globl xpu_sim_interrupt\n"
    ".type xpu_sim_interrupt, @function\n"
    "xpu_sim_interrupt:\n"
    "  pushfq\n  cld\n"
    "  pushq %rbp\n  movq %rsp, %rbp\n"
    "  pushq %rax\n  pushq %rbx\n  pushq %rcx\n  pushq %rdx\n  pushq %rsi\n  pushq %rdi\n"
    "  pushq %r8\n  pushq %r9\n  pushq %r10\n  pushq %r11\n"
    "  movl xpu_sim_saved_bytes(%rip), %ecx\n"
    "  movl %ecx, %ebx\n"
    "  testl %ecx, %ecx\n  jnz 1f\n"
    "  subq $512, %rsp\n  andq $-64, %rsp\n  fxsave64 (%rsp)\n  jmp 2f\n"
    "1:subq %rcx, %rsp\n  andq $-64, %rsp\n"
    // The header of the area must be zero.
    "  xorl %eax, %eax\n  leaq 512(%rsp), %rdi\n  movl $8, %ecx\n  rep stosq\n"
    "  movl $0xE7, %eax\n  xorl %edx, %edx\n  xsave64 (%rsp)\n"
    "2:call xpu_sim_interrupted\n"
    "  testl %ebx, %ebx\n  jnz 3f\n"
    "  fxrstor64 (%rsp)\n  jmp 4f\n"
    "3:movl $0xE7, %eax\n  xorl %edx, %edx\n  xrstor64 (%rsp)\n"
    "4:leaq -80(%rbp), %rsp\n"
    "  popq %r11\n  popq %r10\n  popq %r9\n  popq %r8\n"
    "  popq %rdi\n  popq %rsi\n  popq %rdx\n  popq %rcx\n  popq %rbx\n  popq %rax\n"
    "  popq %rbp\n  popfq\n"
    "  ret $128\n"
    ".size xpu_sim_interrupt, . - xpu_sim_interrupt\n");

#endif

namespace xpu_sim::rt {

namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
struct sigaction previous[64];
struct sigaction previous_watchdog;

// The fault, for the code after the handler.
struct Fault {
  int signal;
  const void* address;
  const void* pc;
  bool nowhere;            // an address that no memory can have; which is not known
  const void* stack[48];  // from its end on, as far as there is any
};

#if defined(__x86_64__)
const void* pc_of(const ucontext_t* c) { return reinterpret_cast<const void*>(c->uc_mcontext.gregs[REG_RIP]); }
const void* sp_of(const ucontext_t* c) { return reinterpret_cast<const void*>(c->uc_mcontext.gregs[REG_RSP]); }
#elif defined(__aarch64__)
const void* pc_of(const ucontext_t* c) { return reinterpret_cast<const void*>(c->uc_mcontext.pc); }
const void* sp_of(const ucontext_t* c) { return reinterpret_cast<const void*>(c->uc_mcontext.sp); }
#else
const void* pc_of(const ucontext_t*) { return nullptr; }
const void* sp_of(const ucontext_t*) { return nullptr; }
#endif

// Is it the kernel's own code, which may stop anywhere? The runtime, its hooks and the standard library may not.
// Kernels without symbols are not interrupted.
bool is_kernel_code(const Core& core, const void* pc) {
  const Module* const module = core.launch->kernel->module;
  const Symbol* const function = module ? module->function_at(reinterpret_cast<uintptr_t>(pc)) : nullptr;
  if (!function) return false;
  const char* const name = function->name.c_str();
  for (const char* others : {"__", "_ZNSt", "_ZNKSt", "_ZSt", "_ZN9__gnu_cxx"}) {
    if (std::strncmp(name, others, std::strlen(others)) == 0) return false;
  }
  return !std::strstr(name, "xpu_sim") || std::strstr(name, "DeducedLauncher");  // a kernel may be inlined there
}

// The functions that the strict build calls at loads and stores have no line of the kernel's, nor have memset and its
// like: the first address above that does is the caller's.
const void* kernel_pc(const Core& core, const Fault& fault) {
  if (is_kernel_code(core, fault.pc)) return fault.pc;
  for (const void* word : fault.stack) {
    if (is_kernel_code(core, word)) return static_cast<const char*>(word) - 1;
  }
  return fault.pc;
}

// The end of a function of the kernel's, or what lies where the last one returned to.
bool is_return(const Fault& fault) {
  if (fault.pc == fault.address && !fault.nowhere) return true;
#if defined(__x86_64__)
  return fault.nowhere && *static_cast<const unsigned char*>(fault.pc) == 0xC3;
#else
  return false;
#endif
}

[[noreturn]] void landed(const Core& core, const Fault& fault) {
  Worker& worker = *core.worker;
  const uintptr_t at = reinterpret_cast<uintptr_t>(fault.address);
  // finding_at takes return addresses, which come after the instruction.
  const void* const pc = static_cast<const char*>(kernel_pc(core, fault)) + 1;
  if (fault.signal == watchdog_signal()) watchdog_trap(core, pc);
  Check check = Check::memory_fault;
  std::string message;
  long long byte = 0;
  if (fault.signal == SIGFPE) {
    check = Check::arithmetic_fault;
    message = "integer division by zero, or a quotient that overflows";
  } else if (fault.signal == SIGILL) {
    check = Check::illegal_instruction;
    message = "illegal instruction: a function ended without a return, or the compiler placed a trap";
  } else if (is_return(fault)) {
    check = Check::lm_object_overflow;
    message = "a return address was overwritten: a store went past the end of an object in LM";
  } else if (fault.nowhere) {
    message = "access to an address that no memory can have";
  } else if (const long long past = core.fiber ? static_cast<const char*>(fault.address) - core.lm_top : -1;
             past >= 0 && past < static_cast<long long>(kBlockBytes / 2)) {
    check = Check::lm_object_overflow;
    message = text("access %lld bytes past the end of the core's LM: a loop or an index left its object", past);
  } else if (core.fiber && worker.stacks().owner(fault.address) == core.fiber) {
    check = Check::stack_overflow;
    message = text("the stack overflowed %zu bytes below its top; a core has %zu bytes of LM",
                   static_cast<size_t>(core.lm_top - static_cast<const char*>(fault.address)), core.launch->lm_limit);
  } else if (at < 4096) {
    check = Check::null_pointer;
    message = at ? text("access through a null pointer, at offset %zu", static_cast<size_t>(at))
                 : "access through a null pointer";
  } else if (const std::string freed = freed_gm(fault.address, &byte); !freed.empty()) {
    check = Check::freed_memory;
    message = text("access to byte %lld of %s, which was freed", byte, freed.c_str());
  } else {
    const Span* const near = core.launch->gm->nearest(at);
    if (near && at + 65536 > near->begin && at < near->end + 65536) {
      check = Check::gm_out_of_bounds;
      message = text("access to byte %lld of %s, which has %zu", static_cast<long long>(at - near->begin), near->name,
                     near->bytes());
    } else {
      message = text("access to 0x%llx, which is not mapped", static_cast<unsigned long long>(at));
    }
  }
  Finding f = finding_at(check, core, pc, message);
  if (f.at.file.empty() && core.last.file) {  // inside a copy, for one
    f.at.file = core.last.file;
    f.at.line = core.last.line;
  }
  if (check == Check::gm_out_of_bounds || check == Check::freed_memory) describe(&f, core, fault.address);
  if (check == Check::lm_object_overflow) f.space = "LM";
  trap(std::move(f));
}

// Where `landed` begins: on the worker's stack for that, with what happened below the stack's end.
struct Landing {
  Core* core;
  Fault fault;
};
[[noreturn]] void landing(Landing* l) { landed(*l->core, l->fault); }

// Goes on in `landed`, outside of the handler: it may allocate and lock, which the interrupted kernel does not.
void land(Core* core, int signal, const void* address, ucontext_t* context, bool nowhere = false) {
  core->worker->watch.hold();  // until the launch has ended
  const Fiber& f = *core->worker->stacks().fiber(kFaultStack);
  *owner_slot(f.low) = core;
  Landing* const l = reinterpret_cast<Landing*>(f.high - sizeof(Landing)) - 1;
  *l = {core, {signal, address, pc_of(context), nowhere, {}}};
  // Of a stack that has overflowed nothing may be left to read.
  const void* const* const sp = static_cast<const void* const*>(sp_of(context));
  const size_t left = core->fiber ? static_cast<size_t>(core->fiber->high - reinterpret_cast<const char*>(sp)) : 0;
  const size_t words = std::min(left / sizeof *sp, sizeof l->fault.stack / sizeof *sp);
  if (words && reinterpret_cast<const char*>(sp) >= core->fiber->low) raw_copy(l->fault.stack, sp, words * sizeof *sp);
#if defined(__x86_64__)
  const uintptr_t top = reinterpret_cast<uintptr_t>(l) & ~uintptr_t{15};
  context->uc_mcontext.gregs[REG_RSP] = static_cast<greg_t>(top - 8);  // as after a call
  context->uc_mcontext.gregs[REG_RIP] = reinterpret_cast<greg_t>(&landing);
  context->uc_mcontext.gregs[REG_RDI] = reinterpret_cast<greg_t>(l);
  context->uc_mcontext.gregs[REG_RBP] = 0;
#else
  landing(l);  // on the alternate stack, which the switch away from it leaves
#endif
}

void on_fault(int signal, siginfo_t* info, void* context) {
  ucontext_t* const where = static_cast<ucontext_t*>(context);
  Core* const core = core_on(sp_of(where));
  if (core->worker) return land(core, signal, info->si_addr, where, signal == SIGSEGV && info->si_code == SI_KERNEL);
  // Not a kernel's fault: call the previous handler.
  const struct sigaction& before = previous[signal];
  if (before.sa_flags & SA_SIGINFO) return before.sa_sigaction(signal, info, context);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) return before.sa_handler(signal);
  std::signal(signal, SIG_DFL);  // the instruction is repeated, and ends the process as it would have
}

// Makes the core call xpu_sim_interrupted where it is, if it may.
void interrupt(const Core& core, ucontext_t* where) {
#if defined(__x86_64__)
  constexpr size_t kRoom = 24 * 1024;  // for registers and a switch
  greg_t* const registers = where->uc_mcontext.gregs;
  const char* const sp = static_cast<const char*>(sp_of(where));
  if (!core.fiber || sp < core.fiber->low + kRoom || sp >= core.fiber->high) return;
  if ((checker && !checker->may_interrupt()) || !is_kernel_code(core, pc_of(where))) return;
  const uintptr_t top = reinterpret_cast<uintptr_t>(sp) - 128 - sizeof(greg_t);  // below the red zone
  *reinterpret_cast<greg_t*>(top) = registers[REG_RIP];
  registers[REG_RSP] = static_cast<greg_t>(top);
  registers[REG_RIP] = reinterpret_cast<greg_t>(&xpu_sim_interrupt);
#else
  (void)core, (void)where;
#endif
}

void on_watchdog(int signal, siginfo_t* info, void* context) {
  ucontext_t* const where = static_cast<ucontext_t*>(context);
  Core* const core = core_on(sp_of(where));
  Watch* const watch = static_cast<Watch*>(info->si_value.sival_ptr);
  if (!watch || !watch->is_ours()) {
    if (previous_watchdog.sa_flags & SA_SIGINFO) previous_watchdog.sa_sigaction(signal, info, context);
    return;
  }
  const Watch::Verdict verdict = watch->tick(*core);
  if (!core->worker) return;
  if (verdict == Watch::Verdict::stop) return land(core, signal, nullptr, where);
  if (verdict == Watch::Verdict::interrupt) interrupt(*core, where);
  if (watch->limit_reached()) core->calls = UINT32_MAX / 2;  // its next call into the runtime ends the launch
}

}  // namespace

int watchdog_signal() { return SIGRTMIN + 7; }

void catch_watchdog_signal() {
  static bool done = false;
  const std::lock_guard<std::mutex> lock(lock_of(Shared::signals));
  if (std::exchange(done, true)) return;
#if defined(__x86_64__)
  unsigned bytes = 0, others;
  if (__builtin_cpu_supports("avx") && __get_cpuid_count(13, 0, &others, &bytes, &others, &others)) {
    xpu_sim_saved_bytes = bytes;
  }
#endif
  struct sigaction action;
  std::memset(&action, 0, sizeof action);
  action.sa_sigaction = &on_watchdog;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  sigaction(watchdog_signal(), nullptr, &previous_watchdog);
  sigaction(watchdog_signal(), &action, nullptr);
}

void catch_faults() {
  static bool done = false;
  const std::lock_guard<std::mutex> lock(lock_of(Shared::signals));
  if (std::exchange(done, true)) return;
  for (const int signal : kSignals) {
    struct sigaction action;
    std::memset(&action, 0, sizeof action);
    action.sa_sigaction = &on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(signal, nullptr, &previous[signal]);  // known before the handler can be called
    sigaction(signal, &action, nullptr);
  }
}

SignalStack::SignalStack() {
  stack_t old;
  if (sigaltstack(nullptr, &old) == 0 && !(old.ss_flags & SS_DISABLE)) return;  // the thread has one
  stack_t mine;
  std::memset(&mine, 0, sizeof mine);
  mine.ss_size = 64 * 1024;
  memory_.reset(new char[mine.ss_size]);
  mine.ss_sp = memory_.get();
  sigaltstack(&mine, nullptr);
}

SignalStack::~SignalStack() {
  stack_t now;
  if (!memory_ || sigaltstack(nullptr, &now) != 0 || now.ss_sp != memory_.get()) return;
  std::memset(&now, 0, sizeof now);
  now.ss_flags = SS_DISABLE;
  sigaltstack(&now, nullptr);
}

}  // namespace xpu_sim::rt

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

namespace xpu_sim::rt {

const char Watch::own_mark = 0;

Watch::~Watch() {
  if (created_) timer_delete(timer_);
}

void Watch::begin(double seconds) {
  limit_ = seconds;
  used_ = 0;
  last_ = {};
  requested_ = held_ = 0;
  if (generation_ != fork_generation()) {
    created_ = false;
    armed_ = 0;
    generation_ = fork_generation();
  }
  watching_ = 1;
  if (!armed_ || period_ != kPeriod) arm(kPeriod);
}

void Watch::arm(double period) {
  if (!created_) {
    catch_watchdog_signal();
    sigevent event;
    std::memset(&event, 0, sizeof event);
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_notify_thread_id = static_cast<int>(syscall(SYS_gettid));
    event.sigev_signo = watchdog_signal();
    event.sigev_value.sival_ptr = this;
    if (timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer_) != 0) return;  // no timers left: run unwatched
    created_ = true;
  }
  itimerspec when;
  std::memset(&when, 0, sizeof when);
  when.it_interval.tv_nsec = when.it_value.tv_nsec = static_cast<long>(period * 1e9);
  timer_settime(timer_, 0, &when, nullptr);
  armed_ = period > 0;
  period_ = period;
}

Watch::Verdict Watch::tick(const Core& core) {
  if (!watching_) {
    arm(0);
    return Verdict::go_on;
  }
  if (held_) return Verdict::go_on;
  used_ += period_;
  if (limit_ > 0 && used_ >= limit_) {
    // First ask: the core may be in the runtime, which must not be left in the middle. One that has not come by in a
    // whole period is in its own code.
    if (requested_) return used_ - requested_at_ >= kPeriod ? Verdict::stop : Verdict::go_on;
    requested_at_ = used_;
    requested_ = 1;
  }
  if (!core.worker) return Verdict::go_on;
  const Position now{&core, core.cluster, core.worker->epoch(), core.calls};
  const bool same = now == last_;
  last_ = now;
  if (!same) return Verdict::go_on;
  if (period_ != kTurn) arm(kTurn);
  return Verdict::interrupt;
}

}  // namespace xpu_sim::rt
