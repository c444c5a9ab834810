// pipeline: position in a ring of shared-memory stages. Producer and consumer each keep one and count alike.
//
// full[stage]   completes when the stage's bytes and arrivals are in; the consumer waits with `phase`.
// empty[stage]  completes when the consumers have released the stage; the producer waits with `phase ^ 1`, so that its
//               first pass over the stages does not wait.
#pragma once

template <int kNumStages>
struct PipelineState {
  int stage = 0, phase = 0;
  __device__ void advance() {
    if (++stage == kNumStages) stage = 0, phase ^= 1;
  }
  __device__ void advance(int steps) {
    stage += steps;
    phase ^= stage / kNumStages & 1;
    stage %= kNumStages;
  }
};
