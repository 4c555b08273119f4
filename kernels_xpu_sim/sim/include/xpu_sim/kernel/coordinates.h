// Who am I: the values of the launch, not of the hardware.
#pragma once

// Constant for the core that runs, hence `const`: the compiler may ask once.
[[gnu::const]] int core_id();
[[gnu::const]] int core_num();
[[gnu::const]] int cluster_id();
[[gnu::const]] int cluster_num();
