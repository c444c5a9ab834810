// open_peers: groups of ranks by the number that stands for them in launch_layer's option.
#pragma once
#include "hopper_fused/few_tokens/peers.cuh"

constexpr int64_t kFirstPeers = 16;  // smaller ones are FP8 parts of h

// Those of an option, or null.
const Peers* peers_of(int64_t option);
