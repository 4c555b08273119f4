// The part of the runtime of Kunlun XPUs (XRE) that host programs use: one device, whose memory is the emulator's GM.
// Functions return XPU_SUCCESS or an error; invalid memory is a finding too, since few callers check errors.
#pragma once

#include <cstddef>
#include <cstdint>

#include "xpu_sim/site.h"

#ifndef DLL_EXPORT
#define DLL_EXPORT __attribute__((visibility("default")))
#endif

typedef void* XPUStream;
typedef void* XPUEvent;

enum XPUError_t : int {
  XPU_SUCCESS = 0,
  XPUERR_INVALID_DEVICE = 1,
  XPUERR_INVALID_PARAM = 2,
  XPUERR_NOMEM = 3,
  XPUERR_LAUNCH = 4,  // a launch was refused or ended early
};
enum XPUMemoryKind { XPU_MEM_MAIN = 0, XPU_MEM_HBM = 0, XPU_MEM_L3 = 1 };  // one address space
enum XPUMemcpyKind { XPU_HOST_TO_DEVICE, XPU_DEVICE_TO_HOST, XPU_DEVICE_TO_DEVICE };

const char* xpu_strerror(int error);

int xpu_device_count(int* count);
int xpu_set_device(int device);
int xpu_current_device(int* device);

// Filled with 0xA5, 64-byte aligned, between red zones.
int xpu_malloc(void** device_ptr, uint64_t bytes, XPUMemoryKind kind = XPU_MEM_MAIN, XPU_SIM_SITE);
int xpu_free(void* device_ptr, XPU_SIM_SITE);
// Page-locked memory of the host.
int xpu_host_alloc(void** host_ptr, uint64_t bytes, unsigned flags = 0);
int xpu_host_free(void* host_ptr, XPU_SIM_SITE);
int xpu_memcpy(void* to, const void* from, uint64_t bytes, XPUMemcpyKind kind, XPU_SIM_SITE);
int xpu_memcpy_async(void* to, const void* from, uint64_t bytes, XPUMemcpyKind kind, XPUStream stream, XPU_SIM_SITE);
int xpu_memset(void* device_ptr, int value, uint64_t bytes, XPU_SIM_SITE);

// Launches are synchronous, so there is nothing to wait for. Returns XPUERR_LAUNCH if a launch of this thread since the
// last call was refused or ended early.
int xpu_wait(XPUStream stream = nullptr, XPU_SIM_SITE);
// The use of what was destroyed is a finding.
int xpu_stream_create(XPUStream* stream);
int xpu_stream_destroy(XPUStream stream, XPU_SIM_SITE);
int xpu_stream_wait_event(XPUStream stream, XPUEvent event, XPU_SIM_SITE);
int xpu_event_create(XPUEvent* event);
int xpu_event_record(XPUEvent event, XPUStream stream, XPU_SIM_SITE);
int xpu_event_wait(XPUEvent event, XPU_SIM_SITE);
int xpu_event_destroy(XPUEvent event, XPU_SIM_SITE);

template <class T>
int xpu_malloc(T** device_ptr, uint64_t bytes, XPUMemoryKind kind = XPU_MEM_MAIN, XPU_SIM_SITE) {
  return xpu_malloc(reinterpret_cast<void**>(device_ptr), bytes, kind, xpu_sim_site);
}
