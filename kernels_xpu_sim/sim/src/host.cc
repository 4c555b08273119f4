// XRE and the frame of operators on the emulator: device memory is GM, and everything asked for has been done when a
// call returns.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>

#include "forks.h"
#include "gm.h"
#include "modules.h"
#include "report.h"
#include "xpu/refactor/impl_public/wrapper_check.h"
#include "xpu/runtime.h"
#include "xpu/xdnn.h"
#include "xpu_sim/chevron.h"
#include "xpu_sim/gm.h"
#include "xpu_sim/launch.h"

using xpu_sim::Site;

namespace xpu_sim::rt {

namespace {

// A finding of the host's, at its own line.
int wrong(Check check, const char* function, Site site, std::string message) {
  Finding f;
  f.check = name_of(check);
  f.message = std::move(message);
  f.kernel = function;
  if (site.file) f.at = {site.file, site.line, ""};
  f.replay = to_string(defaults());
  std::vector<Finding> of_no_launch;
  keep(f, &of_no_launch);
  return XPUERR_INVALID_PARAM;
}

// Says that the memory was freed, if it was.
bool was_freed(const void* p, const char* function, Site site) {
  long long byte = 0;
  const std::string name = freed_gm(p, &byte);
  if (name.empty()) return false;
  wrong(Check::freed_memory, function, site,
        text("expected device memory, got byte %lld of %s, which was freed", byte, name.c_str()));
  return true;
}

// Is all of it GM?
int check_device(const void* p, uint64_t bytes, const char* function, Site site) {
  const size_t room = gm_room(p);
  if (room >= bytes && (room || !bytes)) return XPU_SUCCESS;
  if (!p) return wrong(Check::null_pointer, function, site, "expected device memory, got nullptr");
  if (!room && was_freed(p, function, site)) return XPUERR_INVALID_PARAM;
  if (!room) return wrong(Check::host_pointer, function, site, "expected device memory, got another address");
  return wrong(Check::gm_out_of_bounds, function, site,
               text("expected at most the %zu bytes left of the allocation, got %llu", room,
                    static_cast<unsigned long long>(bytes)));
}

int check_host(const void* p, const char* function, Site site) {
  if (!p) return wrong(Check::null_pointer, function, site, "expected host memory, got nullptr");
  if (gm_room(p)) {
    return wrong(Check::host_pointer, function, site,
                 "expected host memory, got device memory; check the direction of the copy");
  }
  return XPU_SUCCESS;
}

int copy(void* to, const void* from, uint64_t bytes, XPUMemcpyKind kind, const char* function, Site site) {
  if (bytes == 0) return XPU_SUCCESS;
  if (kind < XPU_HOST_TO_DEVICE || kind > XPU_DEVICE_TO_DEVICE) return XPUERR_INVALID_PARAM;
  const bool from_host = kind == XPU_HOST_TO_DEVICE, to_host = kind == XPU_DEVICE_TO_HOST;
  int error = from_host ? check_host(from, function, site) : check_device(from, bytes, function, site);
  if (!error) error = to_host ? check_host(to, function, site) : check_device(to, bytes, function, site);
  if (!error) std::memmove(to, from, bytes);
  return error;
}

// Streams and events are in order whatever happens. Their handles are numbers that are not used again.
constexpr char kStream[] = "stream", kEvent[] = "event", kHost[] = "block of host memory";

struct Handle {
  const char* kind;  // one of these
  Site ended;        // where it was destroyed or freed; no line: it exists
};

std::map<const void*, Handle>& handles() {
  static auto* const all = new std::map<const void*, Handle>;
  return *all;
}

int make_handle(void** handle, const char* kind) {
  if (!handle) return XPUERR_INVALID_PARAM;
  const std::lock_guard<std::mutex> lock(lock_of(Shared::handles));
  if (kind != kHost) *handle = reinterpret_cast<void*>((handles().size() + 1) * 64);
  handles()[*handle] = {kind, {}};
  return XPU_SUCCESS;
}

// Is it one that exists? `end`: from now on it does not. No handle is the default stream, which always exists.
int check_handle(const void* handle, const char* kind, const char* function, Site site, bool end = false) {
  if (!handle && kind == kStream) return XPU_SUCCESS;
  std::string got = handle ? "another address" : "nullptr";
  {
    const std::lock_guard<std::mutex> lock(lock_of(Shared::handles));
    const auto known = handles().find(handle);
    if (known != handles().end() && known->second.kind == kind) {
      Handle& h = known->second;
      if (!h.ended.line) {
        if (end) h.ended = site;
        return XPU_SUCCESS;
      }
      got = text("one that was %s at %s:%d", kind == kHost ? "freed" : "destroyed", h.ended.file, h.ended.line);
    } else if (known != handles().end()) {
      got = std::string("a ") + known->second.kind;
    }
  }
  return wrong(kind == kHost ? Check::freed_memory : Check::invalid_handle, function, site,
               std::string("expected ") + (kind == kEvent ? "an " : "a ") + kind + " that exists, got " + got);
}

}  // namespace

}  // namespace xpu_sim::rt

using namespace xpu_sim::rt;

const char* xpu_strerror(int error) {
  switch (error) {
    case XPU_SUCCESS: return "success";
    case XPUERR_INVALID_DEVICE: return "no such device";
    case XPUERR_INVALID_PARAM: return "invalid argument";
    case XPUERR_NOMEM: return "out of memory";
    case XPUERR_LAUNCH: return "a launch was refused or ended early";
    default: return "unknown error";
  }
}

int xpu_device_count(int* count) {
  *count = 1;
  return XPU_SUCCESS;
}

int xpu_set_device(int device) { return device == 0 ? XPU_SUCCESS : XPUERR_INVALID_DEVICE; }

int xpu_current_device(int* device) {
  *device = 0;
  return XPU_SUCCESS;
}

int xpu_malloc(void** device_ptr, uint64_t bytes, XPUMemoryKind, Site site) {
  if (!device_ptr) return XPUERR_INVALID_PARAM;
  try {
    *device_ptr = xpu_sim::gm_alloc_bytes(bytes, site.file ? text("xpu_malloc:%d", site.line).c_str() : "xpu_malloc");
  } catch (const std::bad_alloc&) {
    *device_ptr = nullptr;
    return XPUERR_NOMEM;
  }
  return XPU_SUCCESS;
}

int xpu_free(void* device_ptr, Site site) {
  try {
    xpu_sim::gm_free(device_ptr);
  } catch (const std::invalid_argument&) {
    if (was_freed(device_ptr, "xpu_free", site)) return XPUERR_INVALID_PARAM;
    return wrong(Check::host_pointer, "xpu_free", site, "expected an address from xpu_malloc, got another");
  }
  return XPU_SUCCESS;
}

int xpu_host_alloc(void** host_ptr, uint64_t bytes, unsigned) {
  if (!host_ptr) return XPUERR_INVALID_PARAM;
  *host_ptr = std::malloc(bytes ? bytes : 1);
  return *host_ptr ? make_handle(host_ptr, kHost) : static_cast<int>(XPUERR_NOMEM);
}

int xpu_host_free(void* host_ptr, Site site) {
  if (!host_ptr) return XPU_SUCCESS;
  const int error = check_handle(host_ptr, kHost, "xpu_host_free", site, true);
  if (!error) std::free(host_ptr);
  return error;
}

int xpu_memcpy(void* to, const void* from, uint64_t bytes, XPUMemcpyKind kind, Site site) {
  return copy(to, from, bytes, kind, "xpu_memcpy", site);
}

int xpu_memcpy_async(void* to, const void* from, uint64_t bytes, XPUMemcpyKind kind, XPUStream stream, Site site) {
  if (const int error = check_handle(stream, kStream, "xpu_memcpy_async", site)) return error;
  return copy(to, from, bytes, kind, "xpu_memcpy_async", site);
}

int xpu_memset(void* device_ptr, int value, uint64_t bytes, Site site) {
  const int error = check_device(device_ptr, bytes, "xpu_memset", site);
  if (!error) std::memset(device_ptr, value, bytes);
  return error;
}

int xpu_wait(XPUStream stream, Site site) {
  if (const int error = check_handle(stream, kStream, "xpu_wait", site)) return error;
  return xpu_sim::take_failed_launch() ? XPUERR_LAUNCH : XPU_SUCCESS;
}

void xpu_sim::detail::check_stream(const void* stream, const char* kernel, Site site) {
  {
    const std::lock_guard<std::mutex> lock(lock_of(Shared::handles));
    if (!handles().count(stream)) return;  // one of another runtime's
  }
  check_handle(stream, kStream, kernel, site);
}

int xpu_stream_create(XPUStream* stream) { return make_handle(stream, kStream); }
int xpu_stream_destroy(XPUStream stream, Site site) {
  return check_handle(stream, kStream, "xpu_stream_destroy", site, true);
}
int xpu_stream_wait_event(XPUStream stream, XPUEvent event, Site site) {
  const int error = check_handle(stream, kStream, "xpu_stream_wait_event", site);
  return error ? error : check_handle(event, kEvent, "xpu_stream_wait_event", site);
}
int xpu_event_create(XPUEvent* event) { return make_handle(event, kEvent); }
int xpu_event_record(XPUEvent event, XPUStream stream, Site site) {
  const int error = check_handle(event, kEvent, "xpu_event_record", site);
  return error ? error : check_handle(stream, kStream, "xpu_event_record", site);
}
int xpu_event_wait(XPUEvent event, Site site) {
  const int error = check_handle(event, kEvent, "xpu_event_wait", site);
  return error ? error : xpu_wait(nullptr, site);
}
int xpu_event_destroy(XPUEvent event, Site site) {
  return check_handle(event, kEvent, "xpu_event_destroy", site, true);
}

namespace baidu::xpu::api {

// The frame of operators: contexts, scratch memory, and what the checks of arguments say.

Context* create_context() { return new Context(kXPU3); }
void destroy_context(Context* ctx) { delete ctx; }

void* ctx_guard::bytes(int64_t n) {
  if (n < 0) return nullptr;
  void* block = nullptr;
  const uint64_t size = n ? static_cast<uint64_t>(n) : 1;
  const bool host = ctx_->dev().type() == kCPU;
  const int error = host ? xpu_host_alloc(&block, size) : xpu_malloc(&block, size);
  if (error) return nullptr;
  if (host) std::memset(block, 0xA5, size);  // as on the device: a kernel that relies on zeros fails
  blocks_.push_back(block);
  return block;
}

ctx_guard::~ctx_guard() {
  for (void* const block : blocks_) ctx_->dev().type() == kCPU ? xpu_host_free(block) : xpu_free(block);
}

int do_host2device(Context* ctx, const void* host, void* device, int64_t bytes, xpu_sim::Site site) {
  if (ctx->dev().type() != kCPU) {
    const int error = xpu_memcpy(device, host, static_cast<uint64_t>(bytes), XPU_HOST_TO_DEVICE, site);
    return error ? RUNTIME_ERROR : SUCCESS;
  }
  std::memmove(device, host, static_cast<size_t>(bytes));
  return SUCCESS;
}

int do_device2host(Context* ctx, const void* device, void* host, int64_t bytes, xpu_sim::Site site) {
  if (ctx->dev().type() != kCPU) {
    const int error = xpu_memcpy(host, device, static_cast<uint64_t>(bytes), XPU_DEVICE_TO_HOST, site);
    return error ? RUNTIME_ERROR : SUCCESS;
  }
  std::memmove(host, device, static_cast<size_t>(bytes));
  return SUCCESS;
}

}  // namespace baidu::xpu::api

namespace xpu_sim::wrapper {

using namespace baidu::xpu::api;

int complain(int error, Site where, const std::string& message) {
  std::fprintf(stderr, "%s:%d: %s\n", where.file, where.line, message.c_str());
  return error;
}

void wrong_type(const char* named, const char* pointed, const char* pointer, Site where) {
  rt::wrong(rt::Check::wrapper_type, "WRAPPER_CHECK_PTR", where,
            std::string(pointer) + " points to " + rt::demangled(pointed) + ", but its check names " +
                rt::demangled(named) + "; name the pointer's type, which gives the number of bytes");
}

int check_memory(const Context* ctx, const void* p, int64_t count, size_t element, const char* name, Site where) {
  if (count < 0)
    return complain(INVALID_PARAM, where,
                    rt::text("expected a size of at least 0 for %s, got %lld", name, static_cast<long long>(count)));
  if (count == 0) return SUCCESS;
  if (!p) return complain(INVALID_PARAM, where, rt::text("expected %s, got nullptr", name));
  if (ctx->dev().type() == kCPU) return SUCCESS;
  const size_t room = gm_room(p), bytes = static_cast<size_t>(count) * element;
  if (room >= bytes) return SUCCESS;
  if (!room && rt::was_freed(p, "WRAPPER_CHECK_PTR", where)) return INVALID_PARAM;
  return complain(INVALID_PARAM, where,
                  room ? rt::text("expected %zu bytes of GM at %s, got %zu", bytes, name, room)
                       : rt::text("expected GM at %s, got memory outside of it", name));
}

void begin_call(Context* ctx, const char* function, std::initializer_list<const char*> types) {
  if (!ctx->debug_level) return;
  ctx->call = function;
  for (const char* const type : types) ctx->call += std::string(" ") + type;
}

void write_call(Context* ctx) {
  if (ctx->debug_level) std::fprintf(stderr, "%s\n", ctx->call.c_str());
}

}  // namespace xpu_sim::wrapper
