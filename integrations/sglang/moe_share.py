"""Print which share of a step of SGLang the experts take, from traces of torch's profiler.

    python integrations/sglang/moe_share.py TRACE.json.gz ... [--layers N]

`sglang.benchmark.one_batch --profile` writes the traces. Printed for each are the ms in which any
kernel runs, the ms in which a kernel of the experts runs, the second over the first, and with
--layers the experts' ms for each layer; then the names of the kernels that were counted as experts
and of the others, to check that they are told apart rightly. Routing does not count as experts.
Time in which kernels overlap, as with programmatic dependent launch, counts once.
"""

import argparse
import gzip
import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

# Names of all kernels from quantising the tokens to the sum over experts. The last three names are
# also those of a dense FP8 layer, which the model must not have.
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
NAMES_SHOWN = 8


@dataclass(frozen=True)
class Kernel:
    """A kernel's execution in a trace. start, end: us on the trace's clock."""

    name: str
    start: float
    end: float

    @property
    def is_of_experts(self) -> bool:
        return EXPERTS.search(self.name) is not None

    @property
    def plain_name(self) -> str:
        """Return the function's name without its return type, template arguments and parameters."""
        name = self.name.removeprefix("void ").replace("(anonymous namespace)::", "")
        return re.sub(r"[<(].*", "", name)


def read_kernels(path: Path) -> list[Kernel]:
    """Return the CUDA kernels of a trace. Raises ValueError where it has none."""
    with gzip.open(path, "rt") as file:
        events = json.load(file)["traceEvents"]

    kernels = []
    for event in events:
        if event.get("cat") == "kernel":
            end = event["ts"] + event["dur"]
            kernels.append(Kernel(event["name"], event["ts"], end))
    if not kernels:
        raise ValueError(
            f"{path}: got no CUDA kernels, want a trace with --profile-activities CPU GPU"
        )
    return kernels


def busy_ms(kernels: list[Kernel]) -> float:
    """Return the ms in which at least one of these kernels runs."""
    total = 0.0
    until = float("-inf")
    for kernel in sorted(kernels, key=lambda kernel: kernel.start):
        start = max(kernel.start, until)
        until = max(kernel.end, until)
        total += until - start
    return total / 1000


def longest(kernels: list[Kernel]) -> str:
    """Return the NAMES_SHOWN kernels with most ms, as text: name and ms."""
    totals = Counter()
    for kernel in kernels:
        totals[kernel.plain_name] += kernel.end - kernel.start

    texts = []
    for name, us in totals.most_common(NAMES_SHOWN):
        texts.append(f"{name} {us / 1000:.3f}")
    return ", ".join(texts)


def show(path: Path, layers: int | None) -> None:
    """Print the share of a trace's experts, and the names on both sides."""
    experts = []
    others = []
    for kernel in read_kernels(path):
        side = experts if kernel.is_of_experts else others
        side.append(kernel)

    ms = busy_ms(experts)
    all_ms = busy_ms(experts + others)
    line = f"{path.name}: {all_ms:.3f} ms, experts {ms:.3f} ({ms / all_ms:.1%})"
    if layers:
        line += f", {ms / layers:.4f} a layer"

    print(line)
    print(f"  experts: {longest(experts)}")
    print(f"  others: {longest(others)}")


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--layers", type=int)
    args = parser.parse_args()
    for path in args.traces:
        show(path, args.layers)


if __name__ == "__main__":
    main()
