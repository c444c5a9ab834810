// argument: the description of one argument of the layer: a tensor, an integer or a real, and what it must be.
// argument_table.cuh has those of all forms of the layer.
#pragma once
#include <dlpack/dlpack.h>

#include <cstdint>

constexpr DLDataType kFp32 = {kDLFloat, 32, 1}, kBf16 = {kDLBfloat, 16, 1}, kFp8 = {kDLFloat8_e4m3fn, 8, 1};
constexpr DLDataType kInt32 = {kDLInt, 32, 1}, kInt8 = {kDLInt, 8, 1};
constexpr int64_t kTokens = -1;  // stands, among sizes, for the number of the call's tokens

enum class ArgumentKind { kTensor, kInteger, kReal };

struct Argument {
  int name;  // argument::Name
  ArgumentKind kind;
  bool optional;  // left out where tokens are bf16
  DLDataType dtype;
  int rank;
  int64_t size[3];
  int64_t at_most;  // an integer's largest value; the smallest is 0
};

template <int kRank>
constexpr Argument tensor(int name, DLDataType dtype, const int64_t (&size)[kRank]) {
  Argument argument = {name, ArgumentKind::kTensor, false, dtype, kRank, {}, 0};
  for (int i = 0; i < kRank; i++) argument.size[i] = size[i];
  return argument;
}
template <int kRank>
constexpr Argument optional_tensor(int name, DLDataType dtype, const int64_t (&size)[kRank]) {
  Argument argument = tensor(name, dtype, size);
  argument.optional = true;
  return argument;
}
constexpr Argument integer(int name, int64_t at_most) {
  return {name, ArgumentKind::kInteger, false, {}, 0, {}, at_most};
}
constexpr Argument real(int name) { return {name, ArgumentKind::kReal, false, {}, 0, {}, 0}; }
