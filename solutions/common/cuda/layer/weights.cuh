// weights: moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048. Packing writes this file for other definitions.
#pragma once

constexpr bool kMxfp4Weights = false;
