// Fences order one core's own stores and copies; barriers make cores wait. Neither implies the other: to publish, each
// writer fences, then all meet at a barrier.
#pragma once

#include "xpu_sim/site.h"

void mfence(XPU_SIM_SITE);        // LM, SM and GM
void mfence_lm(XPU_SIM_SITE);     // LM
void mfence_sm(XPU_SIM_SITE);     // SM
void mfence_gm(XPU_SIM_SITE);     // GM
void mfence_lm_sm(XPU_SIM_SITE);  // LM and SM
void mfence_lm_gm(XPU_SIM_SITE);  // LM and GM
void mfence_sm_gm(XPU_SIM_SITE);  // SM and GM
void mfence(int mask, XPU_SIM_SITE);  // LM = 1, SM = 2, GM = 4

void sync_cluster(XPU_SIM_SITE);  // all cores of the cluster; cores that have returned count as arrived
void sync_all(XPU_SIM_SITE);      // the same: there is no barrier across clusters
void sync_local(XPU_SIM_SITE);    // the cores of one group
void sync_group(int mask, XPU_SIM_SITE);  // bit g: the cores of group g
