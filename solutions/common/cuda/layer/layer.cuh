// layer: the layer's arguments that every kernel reads. The weights are not here: TMA descriptors describe them.
#pragma once
#include <cstdint>

struct Layer {
  const void* logits;           // [T, E] fp32; bf16 with renorm routing
  const uint16_t* bias;         // [E] bf16; not read with renorm routing
  const uint8_t* x;             // [T, H] fp8; bf16 where x_scale is null
  const float* x_scale;         // [H / 128, T]; [T, H / 128] with kScalesRowMajor
  const float* w1_scale;        // [E_local, 2 I / 128, H / 128]
  const float* w2_scale;        // [E_local, H / 128, I / 128]
  uint16_t* output;             // [T, H] bf16
  int num_tokens;
  int local_expert_offset;
  float routed_scaling_factor;
};
