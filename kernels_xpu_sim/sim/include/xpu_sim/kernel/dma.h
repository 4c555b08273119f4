// Copies between global memory and the memories of a cluster. The plain form has finished when it returns, and so have
// the core's earlier asynchronous copies of the same kind; _ASYNC only issues: fence before using the local side.
#pragma once

#include "xpu_sim/site.h"

// Byte counts are wider here than on the device, so that a negative or overflowing one is seen as such.
void GM2LM(const void* gm, void* lm, long long bytes, XPU_SIM_SITE);
void GM2LM_ASYNC(const void* gm, void* lm, long long bytes, XPU_SIM_SITE);
void LM2GM(const void* lm, void* gm, long long bytes, XPU_SIM_SITE);
void LM2GM_ASYNC(const void* lm, void* gm, long long bytes, XPU_SIM_SITE);
void GM2SM(const void* gm, void* sm, long long bytes, XPU_SIM_SITE);
void GM2SM_ASYNC(const void* gm, void* sm, long long bytes, XPU_SIM_SITE);
void SM2GM(const void* sm, void* gm, long long bytes, XPU_SIM_SITE);
void SM2GM_ASYNC(const void* sm, void* gm, long long bytes, XPU_SIM_SITE);

// Group-shared memory: launches of at most 16 cores, one per group.
void GM2GSM(const void* gm, void* gsm, long long bytes, XPU_SIM_SITE);
void GM2GSM_ASYNC(const void* gm, void* gsm, long long bytes, XPU_SIM_SITE);
void GSM2GM(const void* gsm, void* gm, long long bytes, XPU_SIM_SITE);
void GSM2GM_ASYNC(const void* gsm, void* gm, long long bytes, XPU_SIM_SITE);
