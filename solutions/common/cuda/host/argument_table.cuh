// argument_table: the arguments of each form of the layer, in their order. tools/argument_tables.py writes this file.
#pragma once
#include "common/cuda/host/argument.cuh"
#include "common/cuda/layer/problem.cuh"

namespace argument {
enum Name {
  routing_logits,
  routing_bias,
  hidden_states,
  hidden_states_scale,
  gemm1_weights,
  gemm1_weights_scale,
  gemm2_weights,
  gemm2_weights_scale,
  local_expert_offset,
  routed_scaling_factor,
  output,
  topk_ids,
  topk_weights,
  kCount
};
constexpr const char* kNames[kCount] = {
    "routing_logits",
    "routing_bias",
    "hidden_states",
    "hidden_states_scale",
    "gemm1_weights",
    "gemm1_weights_scale",
    "gemm2_weights",
    "gemm2_weights_scale",
    "local_expert_offset",
    "routed_scaling_factor",
    "output",
    "topk_ids",
    "topk_weights",
};
}  // namespace argument

constexpr Argument kDsRouting[] = {
    tensor(argument::routing_logits, kFp32, {kTokens, kNumExperts}),
    tensor(argument::routing_bias, kBf16, {kNumExperts}),
    tensor(argument::hidden_states, kFp8, {kTokens, kHidden}),
    optional_tensor(argument::hidden_states_scale, kFp32, {kHidden / 128, kTokens}),
    tensor(argument::gemm1_weights, kFp8, {kNumLocalExperts, 2 * kIntermediate, kHidden}),
    tensor(argument::gemm1_weights_scale, kFp32, {kNumLocalExperts, 2 * kIntermediate / 128, kHidden / 128}),
    tensor(argument::gemm2_weights, kFp8, {kNumLocalExperts, kHidden, kIntermediate}),
    tensor(argument::gemm2_weights_scale, kFp32, {kNumLocalExperts, kHidden / 128, kIntermediate / 128}),
    integer(argument::local_expert_offset, kNumExperts + kNumSharedExperts - kNumLocalExperts),
    real(argument::routed_scaling_factor),
    tensor(argument::output, kBf16, {kTokens, kHidden}),
};

constexpr Argument kRenormRouting[] = {
    tensor(argument::routing_logits, kBf16, {kTokens, kNumLocalExperts}),
    tensor(argument::hidden_states, kFp8, {kTokens, kHidden}),
    optional_tensor(argument::hidden_states_scale, kFp32, {kHidden / 128, kTokens}),
    tensor(argument::gemm1_weights, kFp8, {kNumLocalExperts, 2 * kIntermediate, kHidden}),
    tensor(argument::gemm1_weights_scale, kFp32, {kNumLocalExperts, 2 * kIntermediate / 128, kHidden / 128}),
    tensor(argument::gemm2_weights, kFp8, {kNumLocalExperts, kHidden, kIntermediate}),
    tensor(argument::gemm2_weights_scale, kFp32, {kNumLocalExperts, kHidden / 128, kIntermediate / 128}),
    tensor(argument::output, kBf16, {kTokens, kHidden}),
};

constexpr Argument kRouted[] = {
    tensor(argument::hidden_states, kFp8, {kTokens, kHidden}),
    optional_tensor(argument::hidden_states_scale, kFp32, {kTokens, kHidden / 128}),
    tensor(argument::topk_ids, kInt32, {kTokens, kTopK}),
    tensor(argument::topk_weights, kFp32, {kTokens, kTopK}),
    tensor(argument::gemm1_weights, kFp8, {kNumLocalExperts, 2 * kIntermediate, kHidden}),
    tensor(argument::gemm1_weights_scale, kFp32, {kNumLocalExperts, 2 * kIntermediate / 128, kHidden / 128}),
    tensor(argument::gemm2_weights, kFp8, {kNumLocalExperts, kHidden, kIntermediate}),
    tensor(argument::gemm2_weights_scale, kFp32, {kNumLocalExperts, kHidden / 128, kIntermediate / 128}),
    integer(argument::local_expert_offset, 2147483647 - kNumLocalExperts),
    tensor(argument::output, kBf16, {kTokens, kHidden}),
};

constexpr Argument kRoutedMxfp4[] = {
    tensor(argument::hidden_states, kFp8, {kTokens, kHidden}),
    optional_tensor(argument::hidden_states_scale, kFp32, {kTokens, kHidden / 128}),
    tensor(argument::topk_ids, kInt32, {kTokens, kTopK}),
    tensor(argument::topk_weights, kFp32, {kTokens, kTopK}),
    tensor(argument::gemm1_weights, kInt8, {kNumLocalExperts, 2 * kIntermediate, kHidden / 2}),
    tensor(argument::gemm1_weights_scale, kInt8, {kNumLocalExperts, 2 * kIntermediate, kHidden / 32}),
    tensor(argument::gemm2_weights, kInt8, {kNumLocalExperts, kHidden, kIntermediate / 2}),
    tensor(argument::gemm2_weights_scale, kInt8, {kNumLocalExperts, kHidden, kIntermediate / 32}),
    integer(argument::local_expert_offset, 2147483647 - kNumLocalExperts),
    tensor(argument::output, kBf16, {kTokens, kHidden}),
};
