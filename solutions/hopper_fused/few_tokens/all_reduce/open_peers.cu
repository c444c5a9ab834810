// open_peers: the list of this process's Peers. A Peers describes a group of ranks that sum their outputs inside the
// launch of the layer. Python calls the functions at the end.
#include "hopper_fused/few_tokens/all_reduce/open_peers.cuh"

#include <mutex>
#include <vector>

#include "common/cuda/host/check_cuda.cuh"
#include "hopper_fused/regimes.cuh"

namespace hopper_fused {

static std::mutex lock;
static auto* opened = new std::vector<const Peers*>;  // never freed: a graph may be replayed until the process ends

const Peers* peers_of(int64_t handle) {
  if (handle == kNoPeers) return nullptr;
  const std::lock_guard<std::mutex> guard(lock);
  if (handle < 1 || handle > (int64_t)opened->size())
    TVM_FFI_THROW(ValueError) << "peers: got " << handle << ", want what open_peers has returned";
  return (*opened)[handle - 1];
}

// Adds a Peers to the list and returns its handle, from 1 on. Raises ValueError for what is out of range.
// buffers: addresses in this process of all ranks' buffers, of peer_buffer_bytes each. failure: the address of 8 bytes
// of pinned host memory. For the others see the fields of Peers (peers.cuh).
static int64_t open_peers(ffi::Array<int64_t> buffers, int64_t failure, int64_t rank, int64_t direct_tokens,
                          int64_t patience) {
  const int64_t ranks = buffers.size();
  if (ranks < 1 || ranks > kMaxRanks)
    TVM_FFI_THROW(ValueError) << "ranks: got " << ranks << ", want 1 to " << kMaxRanks;
  if (rank < 0 || rank >= ranks) TVM_FFI_THROW(ValueError) << "rank: got " << rank << ", want 0 to " << ranks - 1;
  if (direct_tokens < 0 || direct_tokens > Config::kMaxTokens)
    TVM_FFI_THROW(ValueError) << "direct_tokens: got " << direct_tokens << ", want 0 to " << Config::kMaxTokens;
  if (patience < 1 || patience > UINT32_MAX - 1)
    TVM_FFI_THROW(ValueError) << "patience: got " << patience << ", want 1 to " << UINT32_MAX - 1;

  auto* peers = new Peers{};
  for (int64_t i = 0; i < ranks; i++) peers->buffer[i] = reinterpret_cast<uint8_t*>(buffers[i]);
  peers->failure = reinterpret_cast<uint64_t*>(failure);
  peers->rank = (int)rank;
  peers->ranks = (int)ranks;
  peers->direct_tokens = (int)direct_tokens;
  peers->rank_octets = rank_octets_of((int)ranks, (int)direct_tokens);
  peers->patience = (unsigned)patience;

  const std::lock_guard<std::mutex> guard(lock);
  opened->push_back(peers);
  return opened->size();
}

// ---- what Python has to know before it calls open_peers ----

// The size of each rank's buffer.
static int64_t peer_buffer_bytes(int64_t ranks, int64_t direct_tokens) {
  return peer_buffer_bytes_of((int)ranks, (int)direct_tokens);
}
// Up to how many tokens each rank sends its sums to all others, by default.
static int64_t direct_tokens(int64_t ranks) { return direct_tokens_of((int)ranks); }
// Up to how many tokens the layer and the sum over ranks are one launch; 0 if they never are.
static int64_t tokens_of_one_launch() { return kOneLaunch ? Config::kMaxTokens : 0; }

}  // namespace hopper_fused

TVM_FFI_DLL_EXPORT_TYPED_FUNC(open_peers, hopper_fused::open_peers);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(peer_buffer_bytes, hopper_fused::peer_buffer_bytes);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(direct_tokens, hopper_fused::direct_tokens);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(tokens_of_one_launch, hopper_fused::tokens_of_one_launch);
