// all_reduce: the output summed over the ranks of one host, at the end of the launch that computes it.
//
// As soon as a CTA of gemm2 has its columns, it exchanges them with the same CTA of the other ranks, by packets. Each
// packet carries the launch's number, the epoch, which tells the reader that it has arrived. The alternative, values
// without epochs and a flag behind them, takes half the bytes, but was slower at every number of tokens: its fences
// wait until all values are there.
//
// Each rank's part is rounded to bf16 first, as for an all-reduce behind the layer. The parts are added in fp32 in
// order of rank, so all ranks get the same bits, in every run.
//
// The epoch lies in the rank's own memory, and the launch advances it (reset_counters), so a graph may be replayed. The
// buffer has packets for two epochs, so that epoch e overwrites those of e - 2. Nobody needs them any more: a rank
// begins e when its own e - 1 is over. For that it has seen that every rank had begun e - 1, and so was done with e -
// 2.
//
// A rank counts how often it looks for a packet. After Peers::patience times it writes to Peers::failure which rank it
// waited for and in which epoch, and traps. So no wait is endless, and nobody uses a sum that is not complete. Where
// all ranks launch the same layers in the same order it cannot deadlock: a rank sends what others wait for before it
// waits.
#pragma once
#include "hopper_fused/few_tokens/fused_layer.cuh"
#include "common/cuda/numerics.cuh"
#include "hopper_fused/few_tokens/all_reduce/packet.cuh"
#include "hopper_fused/few_tokens/all_reduce/peers.cuh"

namespace hopper_fused {

// ---- packets ----

// Where, in the buffer of rank `to`, a packet of rank `from`'s sums lies. With `from` the number of ranks: a packet of
// the results.
__device__ __forceinline__ Packet* packet_place(const Peers& peers, int to, unsigned epoch, int from, int octet) {
  auto* packets = reinterpret_cast<Packet*>(peers.buffer[to] + kPacketsOffset);
  const int cta = epoch % 2 * Config::kGemm2Ctas + blockIdx.x;
  return packets + (size_t)cta * (peers.ranks * peers.rank_octets + kMaxOctets) + from * peers.rank_octets + octet;
}

// Ends this rank's launch, which has waited for another rank in vain.
__device__ __noinline__ void give_up(const Peers& peers, int missing, unsigned epoch) {
  *reinterpret_cast<volatile uint64_t*>(peers.failure) = (uint64_t)(missing + 1) << 32 | epoch;
  __threadfence_system();
  __trap();
}

// Returns the n-th other rank, n from 0 on. Each rank begins with the one after it, so that not all write to the same.
__device__ __forceinline__ int other_rank(const Peers& peers, int n) {
  const int rank = peers.rank + 1 + n;
  return rank < peers.ranks ? rank : rank - peers.ranks;
}

// ---- sums ----

__device__ __forceinline__ void add_octet(float (&sum)[8], uint4 octet) {
  const unsigned pairs[4] = {octet.x, octet.y, octet.z, octet.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float2 pair = unpack_bf16(pairs[i]);
    sum[2 * i] += pair.x;
    sum[2 * i + 1] += pair.y;
  }
}

// Waits for a packet of another rank.
__device__ __forceinline__ uint4 await_packet(const Peers& peers, const Packet* packet, unsigned epoch, int from) {
  uint4 octet;
  unsigned looks = 0;
  while (!receive_packet(packet, epoch, octet))
    if (++looks > peers.patience) give_up(peers, from, epoch);
  return octet;
}

// The sum over the ranks of an octet, of which this one has `mine`; `at`: its number among the packets of a rank. One
// rank after the other: this code runs once, and loading more of it would take longer than these waits.
__device__ __forceinline__ uint4 sum_over_ranks(const Peers& peers, unsigned epoch, int at, uint4 mine) {
  float sum[8] = {};
#pragma unroll 1
  for (int from = 0; from < peers.ranks; from++) {
    uint4 octet = mine;
    if (from != peers.rank) octet = await_packet(peers, packet_place(peers, peers.rank, epoch, from, at), epoch, from);
    add_octet(sum, octet);
  }
  return make_uint4(pack_bf16(sum[0], sum[1]), pack_bf16(sum[2], sum[3]), pack_bf16(sum[4], sum[5]),
                    pack_bf16(sum[6], sum[7]));
}

// ---- exchange ----

// For all consumer threads of a CTA with a column tile. Writes the output of tokens `first` to `end`, of which this CTA
// has the sums: octet(token, column) gives 8 columns of them in bf16.
template <class Octet>
__device__ __forceinline__ void all_reduce(const FusedArgs& args, const Peers& peers, unsigned epoch, int first,
                                           int end, int column_tile, Octet octet) {
  const int thread = threadIdx.x % kConsumerThreads, ranks = peers.ranks, count = (end - first) * kOctets;
  const auto token = [&](int i) { return first + i / kOctets; };
  const auto column = [&](int i) { return column_tile * Config::kColumnTile + i % kOctets * 8; };
  const auto store = [&](int i, uint4 sum) {
    *reinterpret_cast<uint4*>(args.output + (size_t)token(i) * kHidden + column(i)) = sum;
  };

  if (args.num_tokens <= peers.direct_tokens) {
#pragma unroll 1
    for (int i = thread; i < count; i += kConsumerThreads) {
      const uint4 mine = octet(token(i), column(i));
#pragma unroll 1
      for (int n = 0; n < ranks - 1; n++)
        send_packet(packet_place(peers, other_rank(peers, n), epoch, peers.rank, i), mine, epoch);
    }
#pragma unroll 1
    for (int i = thread; i < count; i += kConsumerThreads)
      store(i, sum_over_ranks(peers, epoch, i, octet(token(i), column(i))));
    return;
  }

  // Rank i * ranks / count adds up octet i.
  const auto first_of = [&](int rank) { return (rank * count + ranks - 1) / ranks; };
  const int begin = first_of(peers.rank), size = first_of(peers.rank + 1) - begin;  // this rank's
#pragma unroll 1
  for (int n = 0; n < ranks - 1; n++) {
    const int to = other_rank(peers, n), to_begin = first_of(to);
#pragma unroll 1
    for (int i = to_begin + thread; i < first_of(to + 1); i += kConsumerThreads)
      send_packet(packet_place(peers, to, epoch, peers.rank, i - to_begin), octet(token(i), column(i)), epoch);
  }
#pragma unroll 1
  for (int at = thread; at < size; at += kConsumerThreads) {
    const int i = begin + at;
    const uint4 sum = sum_over_ranks(peers, epoch, at, octet(token(i), column(i)));
#pragma unroll 1
    for (int n = 0; n < ranks - 1; n++)
      send_packet(packet_place(peers, other_rank(peers, n), epoch, ranks, i), sum, epoch);
    store(i, sum);
  }
#pragma unroll 1
  for (int n = 0; n < ranks - 1; n++) {
    const int from = other_rank(peers, n);
#pragma unroll 1
    for (int i = first_of(from) + thread; i < first_of(from + 1); i += kConsumerThreads)
      store(i, await_packet(peers, packet_place(peers, peers.rank, epoch, ranks, i), epoch, from));
  }
}

}  // namespace hopper_fused
