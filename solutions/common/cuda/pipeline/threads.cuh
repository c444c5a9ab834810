// threads: the numbers of threads in a warp and in a warpgroup.
#pragma once

constexpr int kWarp = 32;
constexpr unsigned kFullWarp = 0xffffffffu;  // member mask of the warp-wide instructions
constexpr int kWarpgroupThreads = 128;
constexpr int kWarpgroupWarps = kWarpgroupThreads / kWarp;
