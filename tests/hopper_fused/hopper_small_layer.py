"""A small layer of hopper_fused for the sanitizers, and a test build whose barriers racecheck can follow.

    python hopper_small_layer.py LIBRARY

runs a test build and holds every stage of it against its plain statement, on the CPU.
"""

import sys

import hopper_stages as stages
import torch

from solutions.common.host.build_library import load_library

# Two K blocks of gemm1 a stage, and one of gemm2; experts with normal and swap-AB tiles, alone and in pairs.
OF = {"num_experts": 128, "num_local_experts": 8, "top_k": 8, "num_groups": 1, "kept_groups": 1}
OF |= {"hidden_size": 1024, "intermediate_size": 512, "renorm": False, "routed": False}
ROWS = (240, 192, 144, 100, 70, 48, 17, 0)  # of each local expert, about
COUNTS = ((260, 2), (1100, 1))  # tokens, and FP8 parts of h with so many

RELEASE = "many_tokens/grouped_gemm.cuh"
# What is changed in the sources: file, text, text in its place. One lane of a warp releases a stage for all, behind a
# __syncwarp() that the compiler drops where the warp is converged; the tool takes an arrival for its own thread's.
VARIANTS = {
    "one lane releases": [],
    "every lane releases": [
        (
            RELEASE,
            "mbar_init(&smem.empty[i], kClusterCtas * kConsumerWarps);",
            "mbar_init(&smem.empty[i], kClusterCtas * kConsumerThreads);",
        ),
        (
            RELEASE,
            "if (threadIdx.x % kWarp < kClusterCtas) mbar_arrive_cluster(&smem.empty[stage], threadIdx.x % kWarp);",
            "for (int cta = 0; cta < kClusterCtas; cta++) mbar_arrive_cluster(&smem.empty[stage], cta);",
        ),
    ],
}


def sources(variant):
    """Path -> text of a variant's test build."""
    texts = stages.sources("full") | {"problem.cuh": stages.problem_header(OF)}
    for path, text, instead in VARIANTS[variant]:
        if texts[path].count(text) != 1:
            raise ValueError(f"{path}: got {texts[path].count(text)} times {text!r}, want it once")
        texts[path] = texts[path].replace(text, instead)
    return texts


def arguments(num_tokens):
    """On the CPU, so that the tool sees few kernels but the layer's."""
    found = stages.tokens(OF, num_tokens, "cpu") | stages.weights(OF, "cpu")
    logits, first = found["routing_logits"], found["local_expert_offset"]
    logits[:, first : first + OF["num_local_experts"]] = -8 + torch.rand(num_tokens, OF["num_local_experts"])
    for expert, rows in enumerate(ROWS):  # the expert's tokens, spread over all
        token = (torch.arange(rows) * 7 + 13 * expert) % num_tokens
        logits[token, first + expert] = 8 + torch.rand(rows)
    return found


def main(path):
    library = load_library(path)
    for num_tokens, h_split in COUNTS:
        given = arguments(num_tokens)
        there = {name: value.cuda() if torch.is_tensor(value) else value for name, value in given.items()}
        output, arrays, numbers = stages.call(library, OF, there, h_split)
        here = {name: array.cpu() for name, array in arrays.items()}
        fault = stages.first_fault(here, numbers, OF, given, output.cpu())
        print(f"T={num_tokens}, h_split {numbers['h_split']}: {fault or stages.RIGHT}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
