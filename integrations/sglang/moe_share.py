"""How much of a step is experts, of torch profiler traces as sglang.benchmark.one_batch --profile
writes them.

python integrations/sglang/moe_share.py TRACE.json.gz ... [--layers N]

For each trace: the ms in which any kernel runs, those in which one of the experts' does, their
share, and with --layers the ms a layer; then the names on both sides, to see that none is on the
wrong one. Routing is not counted. Kernels that overlap, as with programmatic dependent launch,
count once.
"""

import argparse
import gzip
import json
import re
from collections import Counter
from pathlib import Path

# From quantising the tokens to the sum over experts. A dense FP8 layer in the model would share the
# last three names.
EXPERTS = re.compile(
    r"\b(fused_layer|route_permute|grouped_gemm[12]|combine|quantise_tokens)\b"  # hopper_fused
    # triton_fused_v2
    r"|\b(count|place|gemm1\w*|gemm2|swiglu_quant|quantise_tokens|combine)_kernel\b"
    # SGLang's Triton runner
    r"|fused_moe_kernel|moe_align_block_size|count_and_sort_expert|moe_sum|^triton_.*sum"
    # its DeepGEMM runner
    r"|deep_gemm|sm90_fp8_gemm|ep_scatter|post_reorder|fused_moe_dispatch_index"
    r"|per_token_group_quant|act_and_mul_kernel|silu_and_mul"  # both
)


def kernels(path):
    """Experts' and others' kernels of a trace: (name, start, end) in us.

    Raises:
        ValueError: the trace has no CUDA kernels.
    """
    with gzip.open(path, "rt") as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("cat") == "kernel"]
    if not events:
        raise ValueError(
            f"{path}: got no CUDA kernels, want a trace with --profile-activities CPU GPU"
        )
    found = {True: [], False: []}
    for event in events:
        kernel = event["name"], event["ts"], event["ts"] + event["dur"]
        found[bool(EXPERTS.search(kernel[0]))].append(kernel)
    return found[True], found[False]


def busy(of):
    """ms in which at least one of these kernels runs."""
    total, until = 0.0, float("-inf")
    for _, start, end in sorted(of, key=lambda kernel: kernel[1]):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total / 1000


def longest(of):
    """Their names with the ms of each, longest first."""
    total = Counter()
    for name, start, end in of:
        name = name.removeprefix("void ").replace("(anonymous namespace)::", "")
        total[re.sub(r"[<(].*", "", name)] += (end - start) / 1000
    return ", ".join(f"{name} {ms:.3f}" for name, ms in total.most_common(8))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--layers", type=int)
    args = parser.parse_args()
    for path in args.traces:
        experts, others = kernels(path)
        ms, every = busy(experts), busy(experts + others)
        layer = f", {ms / args.layers:.4f} a layer" if args.layers else ""
        print(f"{path.name}: {every:.3f} ms, experts {ms:.3f} ({ms / every:.1%}){layer}")
        print(f"  experts: {longest(experts)}\n  others: {longest(others)}")


if __name__ == "__main__":
    main()
