// packet: 8 columns of a token in bf16 on their way to another GPU of the host, with the epoch in which they were sent.
#pragma once
#include <cstdint>

namespace hopper_fused {

// Four words of 8 bytes, each with two columns and the epoch. A word is seen whole or not at all, so whoever sees the
// epoch in all of them has the columns: no flag, and no fence.
struct alignas(32) Packet {
  uint64_t word[4];
};

__device__ __forceinline__ void store_words_system(uint64_t* to, uint64_t a, uint64_t b) {
  asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(a), "l"(b) : "memory");
}
__device__ __forceinline__ void load_words_system(const uint64_t* from, uint64_t& a, uint64_t& b) {
  asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(from) : "memory");
}

__device__ __forceinline__ void send_packet(Packet* to, uint4 columns, unsigned epoch) {
  const uint64_t mark = (uint64_t)epoch << 32;
  store_words_system(to->word, mark | columns.x, mark | columns.y);
  store_words_system(to->word + 2, mark | columns.z, mark | columns.w);
}

// Whether all of a packet of this epoch is there; then its columns.
__device__ __forceinline__ bool receive_packet(const Packet* from, unsigned epoch, uint4& columns) {
  uint64_t word[4];
  load_words_system(from->word, word[0], word[1]);
  load_words_system(from->word + 2, word[2], word[3]);
  columns = make_uint4((unsigned)word[0], (unsigned)word[1], (unsigned)word[2], (unsigned)word[3]);
  bool all = true;
#pragma unroll
  for (int i = 0; i < 4; i++) all &= word[i] >> 32 == epoch;
  return all;
}

}  // namespace hopper_fused
