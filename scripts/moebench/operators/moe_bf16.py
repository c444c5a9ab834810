"""Qwen3-30B-A3B's mixture of experts in bf16 (W16A16), with every token's experts given.

`run` is the reference that every solution is judged against, and the `reference` of the definitions
that `moebench data --write` writes. It computes in fp32, so that no solution is judged by another's
rounding, and is not meant to be fast.

In workloads expert ids and weights look like a trained router's. A token's score of an expert is
the expert's popularity plus noise; the best are chosen, and weighed by their softmax. Each workload
has popularities of its own, as it stands for another layer of the model.
"""

from dataclasses import dataclass

import numpy as np
import torch
from flashinfer_bench import Trace, Workload

from moebench.operators.fp8.arguments import axes
from moebench.operators.operator import Case, Operator, Tensors, module_source, tensor
from moebench.operators.roofline import Bound, Counts
from moebench.operators.routing.numbers import exponential, normal, normalised


@torch.no_grad()
def run(hidden_states, expert_ids, expert_weights, gemm1_weights, gemm2_weights):
    """Return output [seq_len, hidden_size] bfloat16: each token's experts, weighed and summed.

    Shapes and dtypes of the arguments are in the definition that carries this source. A token names
    an expert at most once. GEMM1's first half is `gate`, its second half `up`.
    """
    num_tokens, hidden_size = hidden_states.shape
    num_experts, _, intermediate_size = gemm2_weights.shape

    x = hidden_states.to(torch.float32)
    output = torch.zeros(num_tokens, hidden_size, dtype=torch.float32, device=x.device)
    for expert in range(num_experts):
        tokens, slot = torch.nonzero(expert_ids == expert, as_tuple=True)
        if tokens.numel() == 0:
            continue
        w13 = gemm1_weights[expert].to(torch.float32)
        w2 = gemm2_weights[expert].to(torch.float32)
        gate, up = x[tokens].matmul(w13.t()).split(intermediate_size, dim=1)
        hidden = torch.nn.functional.silu(gate) * up
        rows = hidden.matmul(w2.t())
        output.index_add_(0, tokens, rows * expert_weights[tokens, slot].unsqueeze(1))
    return output.to(torch.bfloat16)


# Layer key -> sizes; no other operator has these keys
LAYER_SIZES = {
    "bf16": {
        "num_experts": 128,
        "top_k": 8,
        "hidden_size": 2048,
        "intermediate_size": 768,
        "small": False,
    },
    "bf16_small": {
        "num_experts": 16,
        "top_k": 4,
        "hidden_size": 256,
        "intermediate_size": 128,
        "small": True,
    },
}
# Axis of a definition -> its description
MEANINGS = {
    "num_experts": "Experts of the layer, all of them held here.",
    "top_k": "Experts of a token.",
    "hidden_size": "Model width.",
    "intermediate_size": "Width inside an expert.",
    "gemm1_out_size": "GEMM1's output: gate, then up.",
}
# standard deviation of experts' popularities; at 0 all experts are alike
POPULARITY = 0.4


@dataclass(frozen=True)
class Bf16Case(Case):
    """A case of this layer. popularity: standard deviation of experts' popularities."""

    popularity: float = POPULARITY


class MoeBf16(Operator):
    """The layer in bf16, whose experts are chosen by the caller."""

    case = Bf16Case
    tokens = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
    constraints = ["gemm1_out_size == 2 * intermediate_size", "top_k <= num_experts"]
    inputs = {
        "hidden_states": tensor("seq_len hidden_size", "bfloat16", "Activations."),
        "expert_ids": tensor(
            "seq_len top_k",
            "int32",
            "Experts of each token, all different, 0 <= id < num_experts.",
        ),
        "expert_weights": tensor(
            "seq_len top_k", "float32", "What each expert's result is multiplied with."
        ),
        "gemm1_weights": tensor(
            "num_experts gemm1_out_size hidden_size",
            "bfloat16",
            "First projections: rows of `gate`, then rows of `up`.",
        ),
        "gemm2_weights": tensor(
            "num_experts hidden_size intermediate_size",
            "bfloat16",
            "Second projection.",
        ),
    }

    def layer_sizes(self) -> dict[str, dict]:
        return LAYER_SIZES

    def definition_name_of(self, sizes: dict) -> str:
        widths = f"h{sizes['hidden_size']}_i{sizes['intermediate_size']}"
        return f"moe_bf16_topk{sizes['top_k']}_e{sizes['num_experts']}_{widths}"

    def reference_source(self, key: str) -> str:
        return module_source({}, [run])

    def description(self, sizes: dict) -> str:
        return (
            "Mixture of experts with bf16 weights and activations (W16A16), experts given: GEMM1, "
            "SwiGLU, GEMM2, weighted sum over each token's experts."
        )

    def tags(self, sizes: dict) -> list[str]:
        return ["model:qwen3-30b-a3b", "quantization:none"]

    def axes(self, sizes: dict) -> dict:
        return axes(MEANINGS, sizes)

    def outputs(self, sizes: dict) -> dict:
        description = "Weighted sum over a token's experts."
        return {"output": tensor("seq_len hidden_size", "bfloat16", description)}

    def hard_cases(self, key: str) -> list[Bf16Case]:
        return [
            self.new_case(key, "one-token", 1),
            self.new_case(key, "no-tokens", 0),
            self.new_case(key, "odd-length", 37),
            self.new_case(key, "all-alike", 64, popularity=0.0),
            # popularity decides nearly alone: a few experts get most rows
            self.new_case(key, "few-experts", 40, popularity=8.0),
        ]

    def tensors(self, case: Bf16Case) -> Tensors:
        """Return expert ids [T, top_k] int32, best first, and their weights [T, top_k] float32,
        which sum to one.
        """
        sizes = LAYER_SIZES[case.layer_key]
        num_experts = sizes["num_experts"]
        popularities = normal(f"{case.uuid}/popularity", (num_experts,))
        noise = normal(f"{case.uuid}/noise", (case.seq_len, num_experts))
        scores = case.popularity * popularities + noise

        order = np.argsort(-scores, axis=1, kind="stable")
        ids = order[:, : sizes["top_k"]]
        chosen = np.take_along_axis(scores, ids, axis=1)
        below_best = np.maximum(chosen - chosen[:, :1], -16)
        weights = normalised(exponential(below_best))
        return {
            "expert_ids": torch.from_numpy(ids.astype(np.int32)),
            "expert_weights": torch.from_numpy(weights.astype(np.float32)),
        }

    def record(self, case: Bf16Case) -> Trace:
        random = ("hidden_states", "gemm1_weights", "gemm2_weights")
        return self.trace(case, random, ("expert_ids", "expert_weights"), {})

    def counts(self, workload: Workload, stored: Tensors, key: str) -> Counts | None:
        """Return a workload's counts, where every expert is local, or None where it lacks the
        routing.

        Raises ValueError for expert_ids of another shape than [T, top_k].
        """
        if "expert_ids" not in stored:
            return None
        ids = stored["expert_ids"].numpy()
        top_k = LAYER_SIZES[key]["top_k"]
        if ids.ndim != 2 or ids.shape[1] != top_k:
            raise ValueError(f"expert_ids: got shape {ids.shape}, want [T, {top_k}]")
        return Counts(rows=ids.size, tokens=len(ids), active=len(np.unique(ids)))

    def bound(self, seq_len: int, counts: Counts, key: str) -> Bound:
        """Return the roofline bound: the active experts' weights, tokens, ids and weights read
        once, the output written once.
        """
        sizes = LAYER_SIZES[key]
        weights = 3 * sizes["intermediate_size"] * sizes["hidden_size"]
        token_bytes = 2 * 2 * sizes["hidden_size"] + sizes["top_k"] * (4 + 4)
        moved = counts.active * 2 * weights + seq_len * token_bytes
        flops = 2 * counts.rows * weights
        return Bound(counts.rows, counts.active, moved, flops, "bf16")
