#include "faults.h"

#include <ucontext.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "forks.h"
#include "trap.h"
#include "worker.h"

namespace xpu_sim::rt {

namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
struct sigaction previous[64];
struct sigaction previous_watchdog;

// What happened, for the code that runs after the handler.
struct Fault {
  int signal;
  const void* address;
  const void* pc;
  const void* caller;  // of a function without a frame, if it is in one
};

const void* pc_of(const ucontext_t* context) {
#if defined(__x86_64__)
  return reinterpret_cast<const void*>(context->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return reinterpret_cast<const void*>(context->uc_mcontext.pc);
#else
  (void)context;
  return nullptr;
#endif
}

const void* caller_of(const ucontext_t* context) {
#if defined(__x86_64__)
  return *reinterpret_cast<const void* const*>(context->uc_mcontext.gregs[REG_RSP]);
#elif defined(__aarch64__)
  return reinterpret_cast<const void*>(context->uc_mcontext.regs[30]);
#else
  (void)context;
  return nullptr;
#endif
}

const void* sp_of(const ucontext_t* context) {
#if defined(__x86_64__)
  return reinterpret_cast<const void*>(context->uc_mcontext.gregs[REG_RSP]);
#elif defined(__aarch64__)
  return reinterpret_cast<const void*>(context->uc_mcontext.sp);
#else
  (void)context;
  return nullptr;
#endif
}

// The functions that the strict build calls at loads and stores have no frame, and no line either.
const void* kernel_pc(const Fault& fault) {
  const Module* const module = module_at(fault.pc);
  const Symbol* const function = module ? module->function_at(reinterpret_cast<uintptr_t>(fault.pc)) : nullptr;
  const bool hook = function && function->name.compare(0, 7, "__tsan_") == 0;
  return hook && fault.caller ? static_cast<const char*>(fault.caller) - 1 : fault.pc;
}

[[noreturn]] void landed(const Core& core, const Fault& fault) {
  Worker& worker = *core.worker;
  const uintptr_t at = reinterpret_cast<uintptr_t>(fault.address);
  // finding_at takes return addresses, which are behind the instruction.
  const void* const pc = static_cast<const char*>(kernel_pc(fault)) + 1;
  if (fault.signal == watchdog_signal()) watchdog_trap(core, pc);
  Check check = Check::memory_fault;
  std::string message;
  if (fault.signal == SIGFPE) {
    check = Check::arithmetic_fault;
    message = "an integer was divided by zero, or the quotient overflowed";
  } else if (fault.signal == SIGILL) {
    check = Check::illegal_instruction;
    message = "an instruction that cannot be executed: the end of a function without return, or a compiler's trap";
  } else if (core.fiber && worker.stacks().owner(fault.address) == core.fiber) {
    check = Check::stack_overflow;
    message = text("the stack overflowed, %zu bytes below its top; a core has %zu of LM",
                   static_cast<size_t>(core.lm_top - static_cast<const char*>(fault.address)), core.launch->lm_limit);
  } else if (at < 4096) {
    check = Check::null_pointer;
    message = at ? text("access through a null pointer, at offset %zu", static_cast<size_t>(at))
                 : "access through a null pointer";
  } else {
    const Span* const near = core.launch->gm->nearest(at);
    if (near && at + 65536 > near->begin && at < near->end + 65536) {
      check = Check::gm_out_of_bounds;
      message = text("access to byte %lld of %s, which has %zu", static_cast<long long>(at - near->begin), near->name,
                     near->bytes());
    } else {
      message = text("access to 0x%llx, which is no memory", static_cast<unsigned long long>(at));
    }
  }
  Finding f = finding_at(check, core, static_cast<const char*>(fault.pc) + 1, message);
  if (f.at.file.empty() && core.last.file) {  // inside a copy, for one
    f.at.file = core.last.file;
    f.at.line = core.last.line;
  }
  if (check == Check::gm_out_of_bounds) describe(&f, core, fault.address);
  trap(std::move(f));
}

// Where `landed` begins: on the worker's stack for that, with what happened below the stack's end.
struct Landing {
  Core* core;
  Fault fault;
};
[[noreturn]] void landing(Landing* l) { landed(*l->core, l->fault); }

// Goes on in `landed`, outside of the handler: it may allocate and lock, which the interrupted kernel does not.
void land(Core* core, int signal, const void* address, ucontext_t* context) {
  core->worker->watch.hold();  // until the launch has ended
  const Fiber& f = *core->worker->stacks().fiber(kFaultStack);
  *owner_slot(f.low) = core;
  Landing* const l = reinterpret_cast<Landing*>(f.high - sizeof(Landing)) - 1;
  // Of a stack that has overflowed nothing can be read.
  const void* const caller = signal == watchdog_signal() ? caller_of(context) : nullptr;
  *l = {core, {signal, address, pc_of(context), caller}};
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
  if (core->worker) return land(core, signal, info->si_addr, where);
  // Not a kernel's: whoever was here before us.
  const struct sigaction& before = previous[signal];
  if (before.sa_flags & SA_SIGINFO) return before.sa_sigaction(signal, info, context);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) return before.sa_handler(signal);
  std::signal(signal, SIG_DFL);  // the instruction is repeated, and ends the process as it would have
}

void on_watchdog(int signal, siginfo_t* info, void* context) {
  ucontext_t* const where = static_cast<ucontext_t*>(context);
  Core* const core = core_on(sp_of(where));
  Watch* const watch = static_cast<Watch*>(info->si_value.sival_ptr);
  if (!watch || !watch->is_ours()) {
    if (previous_watchdog.sa_flags & SA_SIGINFO) previous_watchdog.sa_sigaction(signal, info, context);
    return;
  }
  const bool stop = watch->tick();
  if (!core->worker) return;
  if (stop) return land(core, signal, nullptr, where);
  if (watch->limit_reached()) core->calls = UINT32_MAX - 1;  // its next call into the runtime ends the launch
}

}  // namespace

int watchdog_signal() { return SIGRTMIN + 7; }

void catch_watchdog_signal() {
  static bool done = false;
  const std::lock_guard<std::mutex> lock(lock_of(Shared::signals));
  if (std::exchange(done, true)) return;
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
