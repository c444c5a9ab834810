// peers: the ranks of one host that sum their outputs in the launch, and the buffer in which each receives packets.
#pragma once
#include <cstddef>
#include <cstdint>

#include "hopper_fused/few_tokens/fused_layer.cuh"
#include "hopper_fused/few_tokens/all_reduce/packet.cuh"

namespace hopper_fused {

constexpr int kMaxRanks = 8;

// ---- octets ----

// 8 columns of a token. A CTA with a column tile numbers those that it sums, token by token.
constexpr int kOctets = Config::kColumnTile / 8;  // of a token
constexpr int octets_of(int tokens) {
  return (tokens + Config::kCtasPerColumnTile - 1) / Config::kCtasPerColumnTile * kOctets;
}
constexpr int kMaxOctets = octets_of(Config::kMaxTokens);

// Up to so many tokens each rank sends its sums to all others. Of more, which would be more bytes, to the rank that
// adds them up, which sends the result: with two ranks those are the same bytes. Estimated for more than two.
constexpr int kDirectRows = 48;  // tokens times other ranks
constexpr int direct_tokens_of(int ranks) {
  return ranks <= 2 ? Config::kMaxTokens : smaller(Config::kMaxTokens, kDirectRows / (ranks - 1));
}

// ---- buffer ----

// A rank's buffer, zero before the first launch:
//
//   epoch    128 bytes   of the rank's last launch; only its own launches touch it
//   packets              [epoch % 2][CTA][from rank][octet]   of all octets, or of those that this rank adds up
//                        and behind a CTA's ranks [octet]     results
constexpr size_t kPacketsOffset = 128;
// Of one rank in a CTA.
constexpr int rank_octets_of(int ranks, int direct_tokens) {
  return larger(octets_of(direct_tokens), (kMaxOctets + ranks - 1) / ranks);
}
constexpr size_t peer_buffer_bytes_of(int ranks, int direct_tokens) {
  const size_t octets = (size_t)ranks * rank_octets_of(ranks, direct_tokens) + kMaxOctets;
  return kPacketsOffset + 2 * Config::kGemm2Ctas * octets * sizeof(Packet);
}

// ---- arguments ----

// Addresses are this process's.
struct Peers {
  uint8_t* buffer[kMaxRanks];
  // In the host's memory: 0, or, if a launch has waited for a rank in vain, that rank plus 1 in the high half, and the
  // epoch.
  uint64_t* failure;
  int rank, ranks;
  int direct_tokens, rank_octets;
  unsigned patience;  // looks for another rank's packet before this rank gives up
};

__device__ __forceinline__ unsigned* epoch_place(const Peers& peers) {
  return reinterpret_cast<unsigned*>(peers.buffer[peers.rank]);
}

struct ReducedArgs : FusedArgs {
  Peers peers;
};

// ---- launch ----

// As launch_fused_layer; the output is the sum over the ranks.
cudaError_t launch_reduced_layer(const TensorMaps& maps, const ReducedArgs& args, int ctas, cudaStream_t stream);

}  // namespace hopper_fused
