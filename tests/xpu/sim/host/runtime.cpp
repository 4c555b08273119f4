// The runtime and the frame of operators, as wrappers and programs around them use them.
#include "check.h"
#include "xpu/refactor/impl_public/wrapper_check.h"
#include "xpu/runtime_ex.h"
#include "xpu_sim/chevron.h"

namespace api = baidu::xpu::api;

static std::string text_of(const char* text, int number) { return text + std::to_string(number); }

HOST_TEST(device_memory_is_gm) {
  int* p = nullptr;
  EXPECT(xpu_malloc(&p, 40) == XPU_SUCCESS);
  EXPECT(gm_room(p) == 40 && gm_room(p + 9) == 4 && gm_room(p + 10) == 0 && gm_room(&p) == 0);
  const int host[4] = {1, 2, 3, 4};
  int back[4] = {};
  EXPECT(xpu_memcpy(p + 6, host, sizeof host, XPU_HOST_TO_DEVICE) == XPU_SUCCESS);
  EXPECT(xpu_memcpy(p, p + 6, sizeof host, XPU_DEVICE_TO_DEVICE) == XPU_SUCCESS);
  EXPECT(xpu_memset(p + 1, 0, 4) == XPU_SUCCESS);
  EXPECT(xpu_memcpy_async(back, p, sizeof back, XPU_DEVICE_TO_HOST, nullptr) == XPU_SUCCESS);
  EXPECT(back[0] == 1 && back[1] == 0 && back[3] == 4);
  EXPECT(xpu_free(p) == XPU_SUCCESS && xpu_free(nullptr) == XPU_SUCCESS);
  EXPECT(gm_room(p) == 0);
}

HOST_TEST(a_copy_to_the_wrong_memory_is_a_finding) {
  int* p = nullptr;
  int host[4] = {};
  xpu_malloc(&p, sizeof host);
  EXPECT(xpu_memcpy(p, host, sizeof host, XPU_DEVICE_TO_HOST) == XPUERR_INVALID_PARAM);
  EXPECT(found("host_pointer")[0].at.line == __LINE__ - 1);
  EXPECT(xpu_memcpy(p, p, sizeof host, XPU_HOST_TO_DEVICE) == XPUERR_INVALID_PARAM);
  found("host_pointer");
  EXPECT(xpu_memcpy(host, nullptr, 4, XPU_DEVICE_TO_HOST) == XPUERR_INVALID_PARAM);
  found("null_pointer");
  EXPECT(xpu_memcpy(p + 1, host, sizeof host, XPU_HOST_TO_DEVICE) == XPUERR_INVALID_PARAM);
  EXPECT(found("gm_out_of_bounds")[0].message == "expected at most the 12 bytes left of the allocation, got 16");
  EXPECT(xpu_memset(host, 0, 4) == XPUERR_INVALID_PARAM);
  found("host_pointer");
  EXPECT(xpu_free(p + 1) == XPUERR_INVALID_PARAM);
  found("host_pointer");
  EXPECT(xpu_memcpy(nullptr, nullptr, 0, XPU_HOST_TO_DEVICE) == XPU_SUCCESS);
  xpu_free(p);
  EXPECT(xpu_set_device(1) == XPUERR_INVALID_DEVICE && xpu_set_device(0) == XPU_SUCCESS);
}

HOST_TEST(a_wait_tells_that_a_launch_went_wrong) {
  EXPECT(xpu_wait() == XPU_SUCCESS);
  launch(nothing, 256, 1)();
  found("bad_launch");
  XPUStream stream = nullptr;
  XPUEvent event = nullptr;
  EXPECT(xpu_stream_create(&stream) == XPU_SUCCESS && xpu_event_create(&event) == XPU_SUCCESS && stream != event);
  EXPECT(xpu_event_record(event, stream) == XPU_SUCCESS && xpu_stream_wait_event(stream, event) == XPU_SUCCESS);
  EXPECT(xpu_wait(stream) == XPUERR_LAUNCH);
  EXPECT(xpu_wait(stream) == XPU_SUCCESS);  // the error was reported once
  EXPECT(xpu_event_destroy(event) == XPU_SUCCESS && xpu_stream_destroy(stream) == XPU_SUCCESS);
}

HOST_TEST(the_use_of_what_was_destroyed_is_a_finding) {
  XPUStream stream = nullptr;
  XPUEvent event = nullptr;
  xpu_stream_create(&stream);
  xpu_event_create(&event);
  EXPECT(xpu_stream_destroy(stream) == XPU_SUCCESS);
  const int line = __LINE__ - 1;
  EXPECT(xpu_stream_destroy(stream) == XPUERR_INVALID_PARAM);
  const Finding f = found("invalid_handle")[0];
  EXPECT(f.at.line == line + 2 && f.kernel == "xpu_stream_destroy");
  EXPECT(f.message == text_of("expected a stream that exists, got one that was destroyed at " __FILE__ ":", line));
  EXPECT(XPU_SIM_CHEVRON("nothing", (nothing), 1, 1, stream)() == ok);
  EXPECT(found("invalid_handle")[0].at.line == __LINE__ - 1);
  EXPECT(XPU_SIM_CHEVRON("nothing", (nothing), 1, 1, &event)() == ok && finding_count() == 0);  // of another runtime
  EXPECT(xpu_event_record(event, stream) == XPUERR_INVALID_PARAM && xpu_wait(stream) == XPUERR_INVALID_PARAM);
  EXPECT(found("invalid_handle").size() == 2);
  EXPECT(xpu_event_destroy(event) == XPU_SUCCESS && xpu_event_record(event, nullptr) == XPUERR_INVALID_PARAM);
  EXPECT(xpu_event_wait(event) == XPUERR_INVALID_PARAM && xpu_event_destroy(nullptr) == XPUERR_INVALID_PARAM);
  EXPECT(xpu_stream_wait_event(nullptr, event) == XPUERR_INVALID_PARAM);
  EXPECT(found("invalid_handle")[0].message.find("expected an event that exists, got one") == 0);
  XPUStream next = nullptr;
  EXPECT(xpu_stream_create(&next) == XPU_SUCCESS && next != stream);  // never used again
  EXPECT(xpu_event_destroy(next) == XPUERR_INVALID_PARAM);
  EXPECT(found("invalid_handle")[0].message == "expected an event that exists, got a stream");
  EXPECT(xpu_stream_destroy(next) == XPU_SUCCESS && xpu_stream_destroy(nullptr) == XPU_SUCCESS);
}

HOST_TEST(the_use_of_freed_memory_is_a_finding) {
  int* p = nullptr;
  int host[4] = {};
  xpu_malloc(&p, sizeof host);
  const std::string name = text_of("xpu_malloc:", __LINE__ - 1);
  EXPECT(xpu_free(p) == XPU_SUCCESS && xpu_free(p) == XPUERR_INVALID_PARAM);
  EXPECT(found("freed_memory")[0].message == "expected device memory, got byte 0 of " + name + ", which was freed");
  EXPECT(xpu_memcpy(host, p + 1, 4, XPU_DEVICE_TO_HOST) == XPUERR_INVALID_PARAM);
  EXPECT(found("freed_memory")[0].message == "expected device memory, got byte 4 of " + name + ", which was freed");
  api::Context ctx(api::kXPU3);
  const auto wrapper = [&ctx](const int* x) -> int {
    WRAPPER_CHECK_PTR(&ctx, int, 4, x);
    return api::SUCCESS;
  };
  EXPECT(wrapper(p) == api::INVALID_PARAM);
  found("freed_memory");
  int* q = nullptr;
  xpu_malloc(&q, sizeof host);
  EXPECT(q != p && wrapper(q) == api::SUCCESS);
  xpu_free(q);
  void* page = nullptr;
  EXPECT(xpu_host_alloc(&page, 8) == XPU_SUCCESS && xpu_host_free(page) == XPU_SUCCESS);
  EXPECT(xpu_host_free(page) == XPUERR_INVALID_PARAM && xpu_host_free(nullptr) == XPU_SUCCESS);
  EXPECT(found("freed_memory")[0].message.find("expected a block of host memory that exists, got one") == 0);
}

HOST_TEST(kernels_do_not_use_freed_memory) {
  Gm<int> out(64, "out");
  int* const in = gm_alloc<int>(64, "in");
  gm_free(in);
  EXPECT(launch(cluster_sums, 1, 4)(in, out, 64) == ended);  // by a copy
  EXPECT(found("freed_memory")[0].message.find(" is byte 0 of in, which was freed") != std::string::npos);
  EXPECT(launch(read_gm, 1, 1)(in, out) == ended);
  const Finding f = found("freed_memory")[0];
  EXPECT(f.message.find("at byte 12 of in, which was freed") != std::string::npos ||
         f.message.find("access to byte 12 of in, which was freed") != std::string::npos);
  EXPECT(f.object == "in" && f.offset == 12 && f.space == "freed GM");
}

HOST_TEST(scratch_memory_is_the_devices) {
  int values[3] = {5, 6, 7};
  const api::VectorParam<int> given{values, 3, nullptr};
  const int* freed = nullptr;
  api::Context xpu(api::kXPU3), cpu(api::kCPU);
  {
    api::ctx_guard guard(&xpu), on_host(&cpu);
    const api::VectorParam<int> copied = given.to_xpu(guard);
    EXPECT(copied.cpu == values && copied.len == 3 && gm_room(copied.xpu) == sizeof values);
    EXPECT(std::memcmp(copied.xpu, values, sizeof values) == 0);
    EXPECT(given.to_xpu(on_host).xpu == nullptr && gm_room(on_host.alloc<int>(3)) == 0);
    EXPECT(guard.alloc<int>(-1) == nullptr);
    freed = copied.xpu;
  }
  EXPECT(gm_room(freed) == 0);
}

static int checked(api::Context* ctx, const float* x, int64_t n) {
  WRAPPER_CHECK_CTX(ctx);
  WRAPPER_CHECK_PTR_OR_NULL(ctx, float, n, x);
  WRAPPER_ASSERT_LT(ctx, n, 100);
  int64_t count = 0;
  WRAPPER_CHECK_SHAPE(ctx, &count, {n, 2});
  WRAPPER_ASSERT_EQ(ctx, count, 2 * n);
  WRAPPER_ASSERT_SUCCESS(ctx, n == 7 ? api::NO_ENOUGH_WORKSPACE : api::SUCCESS);
  KERNEL_ASSERT_SUCCESS(ctx, n == 8 ? 2 : 0);
  WRAPPER_UNIMPLEMENTED(ctx);
}

HOST_TEST(wrappers_return_what_their_checks_say) {
  Gm<float> x(4, "x");
  float host[4];
  api::Context xpu(api::kXPU3), cpu(api::kCPU);
  EXPECT(checked(nullptr, x, 4) == api::INVALID_PARAM);
  EXPECT(checked(&xpu, x, 5) == api::INVALID_PARAM);     // more than there is
  EXPECT(checked(&xpu, host, 4) == api::INVALID_PARAM);  // not the device's
  EXPECT(checked(&xpu, nullptr, 100) == api::INVALID_PARAM);
  EXPECT(checked(&xpu, nullptr, 0) == api::INVALID_PARAM);  // a size that is not positive
  EXPECT(checked(&xpu, nullptr, 7) == api::NO_ENOUGH_WORKSPACE);
  EXPECT(checked(&xpu, nullptr, 8) == api::RUNTIME_ERROR);
  EXPECT(checked(&xpu, x, 4) == api::NOT_IMPLEMENT && checked(&cpu, host, 4) == api::NOT_IMPLEMENT);
}

HOST_TEST(numbers_are_quantised_by_their_largest) {
  EXPECT(
      (api::__fp32_to_intx<int8_t, 127>(2.0f, 2.0f) == 127 && api::__fp32_to_intx<int8_t, 127>(-3.0f, 2.0f) == -127));
  EXPECT(
      (api::__fp32_to_intx<int16_t, 32767>(1.0f, 2.0f) == 16384 && api::__fp32_to_intx<int8_t, 127>(0.0f, 0.0f) == 0));
  EXPECT(std::round(fabs(-2.5f)) == 3.0f && llround(2.5) == 3);  // brought by the vendor's header
}
