"""What all forms of the FP8 block-scale layer share: parts of definitions, workloads, bounds.

sigmoid_bias.py, renorm.py, routed.py and mxfp4.py have a subclass of Fp8Layer for each form.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from flashinfer_bench import Trace, Workload

from moebench.operators.fp8 import swiglu
from moebench.operators.fp8.arguments import axes, outputs
from moebench.operators.fp8.reference import BLOCK
from moebench.operators.layers import Sizes, expert_ranks, routed_experts
from moebench.operators.operator import Case, Operator, Tensors, module_source
from moebench.operators.roofline import Bound, Counts
from moebench.operators.routing import trained_router
from moebench.operators.routing.numbers import integers, normal, sigmoid
from moebench.operators.routing.trained_router import AddedLogits, RouterOutputs

SCALE_NAMES = ("hidden_states_scale", "gemm1_weights_scale", "gemm2_weights_scale")
RANDOM_INPUTS = ("hidden_states", "gemm1_weights", "gemm2_weights", *SCALE_NAMES)

CONSTRAINTS = [
    "gemm1_out_size == 2 * intermediate_size",
    f"hidden_size == {BLOCK} * num_hidden_blocks",
    f"intermediate_size == {BLOCK} * num_intermediate_blocks",
    f"gemm1_out_size == {BLOCK} * num_gemm1_out_blocks",
]
# Axis of a definition -> its description
AXIS_MEANINGS = {
    "num_local_experts": "Experts that this rank holds.",
    "hidden_size": "Model width.",
    "intermediate_size": "Width inside an expert.",
    "gemm1_out_size": "GEMM1's output: up, then gate.",
    "num_hidden_blocks": "Scale blocks along hidden_size.",
    "num_intermediate_blocks": "Scale blocks along intermediate_size.",
    "num_gemm1_out_blocks": "Scale blocks along gemm1_out_size.",
}


@dataclass(frozen=True)
class MoeCase(Case):
    """A case of the FP8 layer.

    offset: the rank's first expert. added_logits: expert (global index) -> what is added to every
    token's logit of it, to force or prevent that it is chosen; None for a typical draw, with counts
    near the average. scales: "random" leaves block scales to FIB; "harsh" ones are stored: large,
    negative and zero ones.
    """

    offset: int
    added_logits: AddedLogits | None = None
    scales: str = "random"


class Fp8Layer(Operator):
    """The FP8 layer: all that its forms have in the same way."""

    case = MoeCase
    tokens = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096, 8192)
    constraints = CONSTRAINTS
    meanings = AXIS_MEANINGS  # axis -> its description
    quantization = "fp8_block_scale"
    prefix: str  # of definitions' names
    # names of the inputs with the routing, which are stored
    routing_inputs: tuple[str, ...]
    reference_sizes = ("experts_at_once",)  # sizes that are constants of the reference
    reference_functions: tuple[Callable, ...]  # of which the reference is put together

    def name_prefix(self, sizes: Sizes) -> str:
        """Return how a definition's name begins, before its sizes."""
        return f"{self.prefix}_topk{sizes['top_k']}"

    @abstractmethod
    def routing_bytes(self, seq_len: int, sizes: Sizes) -> int:
        """Return the bytes of a workload's routing inputs."""

    def definition_name_of(self, sizes: Sizes) -> str:
        experts = f"e{sizes['num_local_experts']}"
        widths = f"h{sizes['hidden_size']}_i{sizes['intermediate_size']}"
        shared = sizes["num_shared_experts"]
        suffix = swiglu.suffix(sizes) + (f"_shared{shared}" if shared else "")
        return f"{self.name_prefix(sizes)}_{experts}_{widths}{suffix}"

    def reference_source(self, key: str) -> str:
        sizes = self.layer_sizes()[key]
        return self_contained(sizes, self.reference_sizes, self.reference_functions)

    def tags(self, sizes: Sizes) -> list[str]:
        """Return a definition's models, quantisation and ranks."""
        tags = [f"model:{model}" for model in sizes["model"]]
        tags += [
            f"quantization:{self.quantization}",
            f"parallelism:ep{expert_ranks(sizes)}",
        ]
        if sizes["tensor_ranks"] > 1:
            tags.append(f"parallelism:tp{sizes['tensor_ranks']}")
        return tags

    def axes(self, sizes: Sizes) -> dict:
        return axes(self.meanings, sizes)

    def outputs(self, sizes: Sizes) -> dict:
        return outputs()

    def usual_fields(self, sizes: Sizes) -> dict[str, object]:
        """Return the offset of a rank in the middle; 0 where one rank holds all experts."""
        rank = expert_ranks(sizes) // 2
        return {"offset": rank * routed_experts(sizes)}

    def tensors(self, case: MoeCase) -> Tensors:
        sizes = self.layer_sizes()[case.layer_key]
        return router_outputs(case, sizes).as_inputs() | stored_scales(case, sizes)

    def scalars(self, case: MoeCase) -> dict[str, float]:
        """Return the inputs of a case that are numbers."""
        return {"local_expert_offset": case.offset}

    def record(self, case: MoeCase) -> Trace:
        scales = SCALE_NAMES if case.scales == "harsh" else ()
        stored = (*self.routing_inputs, *scales)
        return self.trace(case, RANDOM_INPUTS, stored, self.scalars(case))

    def counts(self, workload: Workload, stored: Tensors, key: str) -> Counts | None:
        # topk_weights say how much of an expert a token takes, which no count needs
        needed = set(self.routing_inputs) - {"topk_weights"}
        if not needed <= stored.keys():
            return None

        offset = 0
        if "local_expert_offset" in self.inputs:
            spec = workload.inputs.get("local_expert_offset")
            if spec is None or spec.type != "scalar":
                return None
            offset = int(spec.value)

        sizes = self.layer_sizes()[key]
        local = self.chosen_experts(stored, sizes) - offset
        rank = offset // routed_experts(sizes)
        return trained_router.counts_with_shared(local, rank, sizes)

    def chosen_experts(self, stored: Tensors, sizes: Sizes) -> np.ndarray:
        """Return the experts of each token, [T, top_k], global indices: those that the router
        inside chooses. Raises ValueError for logits of another width.
        """
        outputs = RouterOutputs.of_inputs(stored)
        shape = outputs.logits.shape
        experts = sizes["num_experts"]
        if len(shape) != 2 or shape[1] != experts:
            raise ValueError(f"logits: got shape {shape}, want [T, {experts}]")
        return trained_router.select(outputs, sizes)

    def bound(self, seq_len: int, counts: Counts, key: str) -> Bound:
        return self.bound_of(seq_len, counts, self.layer_sizes()[key])

    def bound_of(self, seq_len: int, counts: Counts, sizes: Sizes) -> Bound:
        """Return the roofline bound of a layer of these sizes, in the catalogue or not: active
        experts' weights, rows' tokens and routing inputs are read once, the output is written once.
        """
        hidden = sizes["hidden_size"]
        moved = counts.active * self.expert_bytes(sizes)
        moved += counts.tokens * (hidden + 4 * hidden // BLOCK)
        moved += self.routing_bytes(seq_len, sizes)
        moved += seq_len * hidden * 2  # output, bf16

        flops = 2 * counts.rows * 3 * sizes["intermediate_size"] * hidden
        return Bound(counts.rows, counts.active, moved, flops)

    def expert_bytes(self, sizes: Sizes) -> int:
        """Return the bytes of an expert's FP8 weights and their fp32 scales, one per block."""
        weights = 3 * sizes["intermediate_size"] * sizes["hidden_size"]
        return weights + 4 * weights // BLOCK**2


def self_contained(
    sizes: Sizes, names: Iterable[str], functions: Iterable[Callable]
) -> str:
    """Return a module's text: sizes of these names as constants, the activation and functions."""
    constants = {name.upper(): sizes[name] for name in names}
    constants["BLOCK"] = BLOCK
    return module_source(constants, [swiglu.source(sizes), *functions])


def slice_sentence(sizes: Sizes) -> str:
    """Return a sentence of the description of a tensor-parallel rank's layer; "" of another's."""
    ranks = sizes["tensor_ranks"]
    if ranks == 1:
        return ""
    share = f"one of {ranks} slices of its intermediate size"
    return f" Each expert is {share}; the ranks' outputs add up."


def router_outputs(case: MoeCase, sizes: Sizes) -> RouterOutputs:
    """Return what a case's experts are chosen by. sizes: as the router has them."""
    if case.added_logits is None:
        return trained_router.draw_typical(case.uuid, case.seq_len, case.offset, sizes)
    return trained_router.draw(f"{case.uuid}/0", case.seq_len, case.added_logits, sizes)


def append_shared_experts(
    routed: Tensors, offset: int, sizes: Sizes, seed: str
) -> None:
    """Append a rank's shared experts to each token's topk_ids and topk_weights, in `routed`.

    Token t takes them on rank t % ranks; on other ranks their ids are -1. They have the ids behind
    the rank's other experts, and ids from there on move up. Their weight is 1, or a sigmoid where
    the layer has a gate. offset: the rank's first expert. sizes: as the router has them. seed: of
    the gate.
    """
    if not sizes["num_shared_experts"]:
        return

    ids = routed["topk_ids"]
    gate = np.ones((len(ids), 1))
    if sizes["shared_gate"]:
        gate = sigmoid(normal(f"{seed}/shared-gate", gate.shape))
    gate_weight = torch.from_numpy(gate).float()
    shared_weights = gate_weight.expand(-1, sizes["num_shared_experts"])

    routed["topk_ids"] = with_shared_ids(ids, offset, sizes)
    weights = [routed["topk_weights"], shared_weights.to(ids.device)]
    routed["topk_weights"] = torch.cat(weights, dim=1)


def with_shared_ids(ids: torch.Tensor, offset: int, sizes: Sizes) -> torch.Tensor:
    """Return topk_ids [T, top_k] with those of a rank's shared experts behind them."""
    shared = sizes["num_shared_experts"]
    num_routed = routed_experts(sizes)
    first_shared = offset + num_routed
    moved = torch.where(ids < first_shared, ids, ids + shared)

    token = torch.arange(len(ids), device=ids.device)
    is_taken_here = token % expert_ranks(sizes) == offset // num_routed
    shared_ids = torch.arange(first_shared, first_shared + shared, device=ids.device)
    shared_ids = torch.where(is_taken_here.unsqueeze(1), shared_ids, -1)
    return torch.cat([moved, shared_ids.int()], dim=1)


def stored_scales(case: MoeCase, sizes: Sizes) -> Tensors:
    """Return a case's harsh block scales by name, or {} if FIB draws its scales.

    A fifth are zero, the others of either sign and up to 32. All of gemm2's are zero for the last
    local expert, and all of the activations' for the first of several tokens.
    """
    if case.scales != "harsh":
        return {}

    hidden = sizes["hidden_size"] // BLOCK
    inter = sizes["intermediate_size"] // BLOCK
    local = sizes["num_local_experts"]
    shapes = {
        "hidden_states_scale": (hidden, case.seq_len),
        "gemm1_weights_scale": (local, 2 * inter, hidden),
        "gemm2_weights_scale": (local, hidden, inter),
    }

    scales = {}
    for name, shape in shapes.items():
        seed = f"{case.uuid}/{name}"
        count = math.prod(shape)
        # multiples of 1/8 from -32 to 32
        eighths = integers(f"{seed}/size", count, 513) - 256
        is_zero = integers(f"{seed}/zero", count, 5) == 0
        eighths[is_zero] = 0
        scales[name] = torch.from_numpy(eighths / 8).float().reshape(shape)
    if case.seq_len > 1:
        scales["hidden_states_scale"][:, 0] = 0
    scales["gemm2_weights_scale"][-1] = 0
    return scales
