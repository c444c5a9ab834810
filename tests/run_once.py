"""Run one packed solution once on the full geometry: the target for compute-sanitizer and ncu.

    compute-sanitizer --tool memcheck python tests/run_once.py triton_fused_v2 80

The tool watches torch's kernels too, which make 1.4 GB of inputs: with `--kernel-name kernel_substring=fused_layer`, or
another kernel's name, it is done in seconds instead of minutes. initcheck needs to see them all.

The packed file must exist (make pack). The output is poisoned with NaN before the call and must have none after it.
"""

import argparse
import sys

import torch
from flashinfer_bench import TraceSet
from flashinfer_bench.compile import BuilderRegistry
from harness.core import paths

from definitions.moe_fp8_block_scale import GEOMETRIES, NUM_EXPERTS, NUM_LOCAL_EXPERTS, definition_name


def inputs(tokens, seed=0):
    """The definition's ten inputs at `tokens` tokens, as FIB draws them, on the current CUDA device."""
    torch.manual_seed(seed)
    size = GEOMETRIES["full"]
    hidden, inter, local = size["hidden_size"], size["intermediate_size"], NUM_LOCAL_EXPERTS

    def fp8(*shape):
        return torch.randn(*shape, device="cuda").clamp_(-2, 2).to(torch.float8_e4m3fn)

    def fp32(*shape):
        return torch.randn(*shape, device="cuda")

    return [
        fp32(tokens, NUM_EXPERTS),
        (0.1 * fp32(NUM_EXPERTS)).bfloat16(),
        fp8(tokens, hidden),
        fp32(hidden // 128, tokens),
        fp8(local, 2 * inter, hidden),
        fp32(local, 2 * inter // 128, hidden // 128),
        fp8(local, hidden, inter),
        fp32(local, hidden // 128, inter // 128),
        64,
        2.5,
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("solution")
    parser.add_argument("tokens", type=int)
    parser.add_argument("--seed", type=int, default=0, help="at 1 token 0 gives it no row here, 2 does")
    args = parser.parse_args()
    trace_set = TraceSet.from_path(str(paths.ROOT))
    solution = trace_set.get_solution(args.solution)
    if solution is None:
        sys.exit(f"unknown or unpacked solution {args.solution!r}; run make pack")
    run = BuilderRegistry.get_instance().build(trace_set.definitions[definition_name("full")], solution)
    tensors = inputs(args.tokens, args.seed)
    output = torch.full((args.tokens, tensors[2].shape[1]), float("nan"), dtype=torch.bfloat16, device="cuda")
    run(*tensors, output)
    torch.cuda.synchronize()
    wrong = int(output.isnan().sum())
    print(f"{args.solution} T={args.tokens}: {wrong} NaN, mean |output| {output.float().abs().mean().item():.4g}")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
