"""A layer that two ranks share: each rank's arguments, the weights as in a checkpoint, and the
output that the ranks' outputs must add up to.
"""

from dataclasses import dataclass

import torch
from every_solution import expected_output, relative_error
from layer_inputs import SCALES, WEIGHTS_AND_SCALES, arguments
from moebench.operators import catalogue

TOKENS = 2  # few, as Triton's interpreter takes long for each expert that they choose
RANKS = 2


@dataclass(frozen=True)
class TwoRanks:
    """A definition's layer on each of two ranks.

    Where the definition has all experts, each rank has a slice of every expert's intermediate size;
    else each has half of the experts.

    ranks: for each rank, name -> argument of the definition. Experts and weights of the tokens are
    the same on both. x takes the place of `hidden_states`: engines quantise tokens themselves.
    """

    layer_key: str  # of the layer on one rank
    x: torch.Tensor  # [T, H] bf16
    ranks: list[dict]

    @property
    def sizes(self) -> dict:
        return catalogue.layer_sizes()[self.layer_key]

    @property
    def has_slices(self) -> bool:
        return self.sizes["num_experts"] == self.sizes["num_local_experts"]

    @property
    def layer(self) -> dict:
        """Return the sizes of the layer before it was shared, by the names that engines use."""
        names = ("num_experts", "top_k", "hidden_size", "intermediate_size")
        layer = {name: self.sizes[name] for name in names}
        if self.has_slices:
            layer["intermediate_size"] *= RANKS
        if self.sizes["swiglu_limit"]:
            layer["swiglu_limit"] = float(self.sizes["swiglu_limit"])
        return layer

    def checkpoint(self) -> dict[str, torch.Tensor]:
        """Return weights and scales before they were shared, by the definition's names."""
        tensors = {}
        for name in WEIGHTS_AND_SCALES:
            parts = [rank[name] for rank in self.ranks]
            if not self.has_slices:
                tensors[name] = concatenated(parts, 0)
            elif name.startswith("gemm2"):
                tensors[name] = concatenated(parts, 2)
            else:  # rows of gate and then of up; a rank has a slice of either
                gates = [part.chunk(2, 1)[0] for part in parts]
                ups = [part.chunk(2, 1)[1] for part in parts]
                tensors[name] = concatenated(gates + ups, 1)
        return tensors

    def expected(self) -> torch.Tensor:
        """Return the sum of the references' outputs on both ranks, fp32 [T, H], for x as it is."""
        total = torch.zeros(self.x.shape)
        for rank in self.ranks:
            scale = torch.ones(TOKENS, self.sizes["hidden_size"] // 128)
            unquantised = {"hidden_states": self.x, "hidden_states_scale": scale}
            total += expected_output(self.layer_key, rank | unquantised).float()
        return total

    def error(self, output) -> float:
        """Return how far an output is from the expected one, relative to its norm."""
        return relative_error(output, self.expected())


def concatenated(parts, dimension):
    """Return `torch.cat` of tensors of any dtype."""
    dtype = parts[0].dtype
    if dtype.itemsize == 1:  # torch does not concatenate FP8 everywhere
        parts = [part.view(torch.uint8) for part in parts]
    return torch.cat(parts, dimension).view(dtype)


def two_ranks(layer_key) -> TwoRanks:
    """Return a layer with random weights, tokens and routing, the same at each call."""
    sizes = catalogue.layer_sizes()[layer_key]
    num_local = sizes["num_local_experts"]
    ranks = []
    for rank in range(RANKS):
        first_expert = rank * num_local if num_local < sizes["num_experts"] else 0
        values = arguments(layer_key, TOKENS, "cpu", seed=rank, offset=first_expert)
        for name in SCALES:
            if values[name].dtype == torch.float32:
                # of FP8 weights: positive and small
                values[name] = 0.02 * (0.5 + values[name].abs())
        ranks.append(values)

    generator = torch.Generator().manual_seed(0)
    # no slot is empty: SGLang on a CPU takes the id -1 for the last expert
    order = torch.rand(TOKENS, sizes["num_experts"], generator=generator).argsort(1)
    for values in ranks:
        values["topk_ids"] = order[:, : sizes["top_k"]].int()
        values["topk_weights"] = ranks[0]["topk_weights"]
    x = torch.randn(TOKENS, sizes["hidden_size"], generator=generator).bfloat16()
    return TwoRanks(layer_key, x, ranks)
