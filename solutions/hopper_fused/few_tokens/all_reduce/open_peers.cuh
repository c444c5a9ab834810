// open_peers: groups of ranks by the handle that stands for them among launch_layer's options.
#pragma once
#include "hopper_fused/few_tokens/all_reduce/peers.cuh"

namespace hopper_fused {

constexpr int64_t kNoPeers = 0;

// Those of a handle; null for kNoPeers. Raises ValueError for one that open_peers has not returned.
const Peers* peers_of(int64_t handle);

}  // namespace hopper_fused
