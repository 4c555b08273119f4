#include "dma_checks.h"

#include "trap.h"

namespace xpu_sim::rt {

namespace {

std::string what(const Copy& c) { return text("%s of %zu bytes", direction_name(c.direction), c.bytes); }

std::string hex(const void* p) {
  return text("0x%llx", static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(p)));
}

// Ends the launch, or goes on without the copy: what then reads its destination, or what it should have freed, is wrong
// too.
void leave_out(const Core& core, const Copy& c, Finding f) {
  trap_or_go_on(std::move(f));
  std::string& first = core.worker->left_out;
  if (first.empty()) first = text("%s at %s:%d, which was left out", what(c).c_str(), c.site.file, c.site.line);
}

void trap_at(Check check, const Core& core, const Copy& c, const void* address, std::string message) {
  Finding f = finding_at(check, core, c.site, std::move(message));
  describe(&f, core, address);
  leave_out(core, c, std::move(f));
}

}  // namespace

void bad_length(const Core& core, const Copy& c, long long n) {
  const void* const gm = to_gm(c.direction) ? c.to : c.from;
  const char* const name = direction_name(c.direction);
  if (n == 0) {
    Finding f = finding_at(Check::dma_len_zero, core, c.site,
                           text("%s: expected at least 1 byte, got 0; guard it: if (n > 0)", name));
    describe(&f, core, gm);
    return trap_or_go_on(std::move(f));  // nothing is missing without it
  }
  trap_at(Check::dma_len_negative, core, c, gm, text("%s: expected at least 1 byte, got %lld", name, n));
}

void bad_gm(const Core& core, const Copy& c) {
  const char* const gm = to_gm(c.direction) ? c.to : c.from;
  const uintptr_t at = reinterpret_cast<uintptr_t>(gm);
  const char* const side = to_gm(c.direction) ? "destination" : "source";
  if (at < 4096) {
    return trap_at(Check::null_pointer, core, c, gm,
                   what(c) + ": its GM " + side + " is " + (at ? hex(gm) : "a null pointer"));
  }
  if (core.launch->gm->find(at, c.bytes, nullptr)) {
    return trap_at(Check::gm_read_only, core, c, gm,
                   what(c) + ": its destination was given to the launch as read-only");
  }
  const Span* const near = core.launch->gm->nearest(at);
  if (near && at + c.bytes + 4096 > near->begin && at < near->end + 4096) {
    const long long first = static_cast<long long>(at - near->begin);
    return trap_at(Check::gm_out_of_bounds, core, c, gm,
                   what(c) + text(": bytes %lld to %lld of %s, which has %zu", first,
                                  first + static_cast<long long>(c.bytes) - 1, near->name, near->bytes()));
  }
  Finding f = finding_at(Check::host_pointer, core, c.site, "");
  describe(&f, core, gm);
  f.message = what(c) + ": its GM " + side + " " + hex(gm) + " is not GM but " +
              (f.space.empty() ? "host memory" : f.space) +
              "; GM is what gm_alloc gives and what is registered for the launch";
  leave_out(core, c, std::move(f));
}

void bad_local(const Core& core, const Copy& c, const char* frame) {
  const Worker& worker = *core.worker;
  const bool sm = local_fence(c.direction) == fence_sm;
  const char* const local = to_gm(c.direction) ? c.from : c.to;
  const uintptr_t at = reinterpret_cast<uintptr_t>(local);
  if (at < 4096) {
    return trap_at(Check::null_pointer, core, c, local,
                   what(c) + ": its local side is " + (at ? hex(local) : "a null pointer"));
  }
  const bool starts_inside =
      sm ? static_cast<size_t>(local - worker.sm()) < worker.sm_bytes() : local >= frame && local < core.lm_top;
  const char* const space = sm ? "SM" : "LM";
  if (starts_inside) {
    const size_t room =
        sm ? worker.sm_bytes() - static_cast<size_t>(local - worker.sm()) : static_cast<size_t>(core.lm_top - local);
    return trap_at(Check::dma_overflow, core, c, local, what(c) + text(": %s ends after %zu", space, room));
  }
  Finding f = finding_at(Check::dma_address, core, c.site, "");
  describe(&f, core, local);
  if (f.space == "LM" && f.object != "stack") f.check = name_of(Check::lm_foreign);
  const std::string got = f.space.empty() ? "host memory" : f.space + (f.object.empty() ? "" : " (" + f.object + ")");
  f.message = what(c) + ": expected its local side in this core's " + space + ", got " + hex(local) + " in " + got;
  leave_out(core, c, std::move(f));
}

void bad_group_shared(const Core& core, const Copy& c) {
  trap_at(Check::group_shared_cores, core, c, to_gm(c.direction) ? c.from : c.to,
          what(c) + text(": group-shared memory is for launches of at most 16 cores, one per group; this has %d",
                         core.launch->cores));
}

void beyond_object(const Core& core, const char* operation, const char* local, long long bytes, size_t room,
                   Site site) {
  const size_t n = static_cast<size_t>(bytes), in_sm = static_cast<size_t>(local - core.worker->sm());
  const bool lm = local >= core.fiber->low && local < core.lm_top && n <= static_cast<size_t>(core.lm_top - local);
  const bool sm = in_sm < core.worker->sm_bytes() && n <= core.worker->sm_bytes() - in_sm;
  if (!lm && !sm) return;
  Finding f = finding_at(lm ? Check::lm_object_overflow : Check::sm_object_overflow, core, site,
                         text("%s of %zu bytes: the object has %zu from there", operation, n, room));
  describe(&f, core, local);
  trap(std::move(f));
}

bool is_sm_object(const Core& core, const Copy& c) {
  const Module& module = *core.launch->kernel->module;
  if (!module.has_symbols) return true;
  const char* const local = to_gm(c.direction) ? c.from : c.to;
  const size_t offset = static_cast<size_t>(local - core.worker->sm());
  const Symbol* const object = module.sm_object_at(offset);
  if (!object) {
    trap_at(Check::dma_address, core, c, local, what(c) + ": its local side is in no __shared__ object");
    return false;
  }
  if (offset - object->begin + c.bytes > object->bytes) {
    trap_at(Check::sm_object_overflow, core, c, local,
            what(c) + text(": %s has %zu bytes, %zu from there", variable_of(object->name).c_str(), object->bytes,
                           object->bytes - (offset - object->begin)));
    return false;
  }
  return true;
}

}  // namespace xpu_sim::rt
