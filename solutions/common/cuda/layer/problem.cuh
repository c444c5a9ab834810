// problem: moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048. Packing writes this file for other definitions.
#pragma once

constexpr int kNumExperts = 256;
constexpr int kNumLocalExperts = 32;
constexpr int kNumSharedExperts = 0;
constexpr int kTopK = 8;
constexpr int kRoutingGroups = 8;
constexpr int kKeptGroups = 4;
constexpr int kHidden = 7168;
constexpr int kIntermediate = 2048;
constexpr bool kRenorm = false;
constexpr float kSwigluLimit = 0.0f;
constexpr float kSwigluAlpha = 1.0f;
constexpr float kSwigluUpOffset = 0.0f;
constexpr bool kClampAfterSilu = false;
