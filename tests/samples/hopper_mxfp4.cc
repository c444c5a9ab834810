// hopper_fused's MXFP4 weights for many tokens, on the host.
//
//   values   writes E4M3 bytes to stdout: of each place in the window, for each of 2^16 pairs of bytes, eight values:
//            those of the pair, and those of the pair with all bits flipped
//   order    writes where each value of a K block lies, 128 bytes
#include <cuda_runtime.h>

#include <string>

#include "k_order.cuh"
#include "mxfp4_values.cuh"

using namespace hopper_fused;

static void write_values() {
  for (int place = 0; place < kExponents; place++) {
    const Magnitudes magnitudes = magnitudes_of(place - kExponentsBelow);
    for (uint32_t pair = 0; pair < 1 << 16; pair++) {
      const uint2 values = e4m3_of_eight(pair | ~pair << 16, magnitudes);
      fwrite(&values, sizeof values, 1, stdout);
    }
  }
}

int main(int, char** arguments) {
  if (std::string(arguments[1]) == "values") write_values();
  else
    for (int k = 0; k < 128; k++) putchar(k_position(k));
}
