// The frame of operators: contexts, scratch memory, and what the checks of arguments say.
#include "xpu/xdnn.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "trap.h"
#include "xpu/refactor/impl_public/wrapper_check.h"
#include "xpu_sim/gm.h"

namespace baidu::xpu::api {

Context* create_context() { return new Context(kXPU3); }
void destroy_context(Context* ctx) { delete ctx; }

void* ctx_guard::bytes(int64_t n) {
  if (n < 0) return nullptr;
  void* block = nullptr;
  const uint64_t size = n ? static_cast<uint64_t>(n) : 1;
  const bool host = ctx_->dev().type() == kCPU;
  const int error = host ? xpu_host_alloc(&block, size) : xpu_malloc(&block, size);
  if (error) return nullptr;
  if (host) std::memset(block, 0xA5, size);  // as on the device: whoever relies on zeros is to notice
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

int check_memory(const Context* ctx, const void* p, int64_t count, size_t element, const char* name, Site where) {
  if (count < 0)
    return complain(INVALID_PARAM, where,
                    rt::text("expected a size of %s, got %lld", name, static_cast<long long>(count)));
  if (count == 0) return SUCCESS;
  if (!p) return complain(INVALID_PARAM, where, rt::text("expected %s, got nullptr", name));
  if (ctx->dev().type() == kCPU) return SUCCESS;
  const size_t room = gm_room(p), bytes = static_cast<size_t>(count) * element;
  if (room >= bytes) return SUCCESS;
  return complain(INVALID_PARAM, where,
                  room ? rt::text("expected %zu bytes of GM at %s, got %zu", bytes, name, room)
                       : rt::text("expected GM at %s, got other memory", name));
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
