"""A layer that two ranks share: its weights as in a checkpoint, and what the ranks' sum must be."""

from dataclasses import dataclass

import torch
from every_solution import expected_output, relative_error
from layer_inputs import arguments
from moebench.operators import catalogue

TOKENS = 5
RANKS = 2
WEIGHTS = ("gemm1_weights", "gemm2_weights")
SCALES = ("gemm1_weights_scale", "gemm2_weights_scale")


@dataclass(frozen=True)
class TwoRanks:
    """ranks: the arguments of each, which have the same tokens and routing.

    Where the definition has all experts, each rank has a slice of every one, else half of them.
    """

    layer_key: str
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
        """Return the whole layer's sizes by the names that engines have."""
        names = ("num_experts", "top_k", "hidden_size", "intermediate_size")
        layer = {name: self.sizes[name] for name in names}
        if self.has_slices:
            layer["intermediate_size"] *= RANKS
        if self.sizes["swiglu_limit"]:
            layer["swiglu_limit"] = float(self.sizes["swiglu_limit"])
        return layer

    def checkpoint(self) -> dict[str, torch.Tensor]:
        """Return all experts' weights and scales, by the definition's names."""
        tensors = {}
        for name in (*WEIGHTS, *SCALES):
            parts = [rank[name] for rank in self.ranks]
            if not self.has_slices:
                tensors[name] = joined(parts, 0)
            elif name.startswith("gemm2"):
                tensors[name] = joined(parts, 2)
            else:
                gates = [part.chunk(2, 1)[0] for part in parts]
                ups = [part.chunk(2, 1)[1] for part in parts]
                tensors[name] = joined(gates + ups, 1)
        return tensors

    def expected(self) -> torch.Tensor:
        """Return the sum of the ranks' references in fp32, of tokens that are not quantised."""
        total = torch.zeros(self.x.shape)
        for rank in self.ranks:
            scale = torch.ones(TOKENS, self.sizes["hidden_size"] // 128)
            unquantised = {"hidden_states": self.x, "hidden_states_scale": scale}
            total += expected_output(self.layer_key, rank | unquantised).float()
        return total

    def error(self, output) -> float:
        """Return how far an output is from the expected one, relative to its norm."""
        return relative_error(output, self.expected())


def joined(parts, dimension):
    """Return tensors of a dtype that torch may not concatenate, concatenated."""
    dtype = parts[0].dtype
    if dtype.itemsize == 1:
        parts = [part.view(torch.uint8) for part in parts]
    return torch.cat(parts, dimension).view(dtype)


def two_ranks(layer_key) -> TwoRanks:
    """Return a layer of random weights, the same at each call."""
    sizes = catalogue.layer_sizes()[layer_key]
    local = sizes["num_local_experts"]
    ranks = []
    for rank in range(RANKS):
        first = rank * local if local < sizes["num_experts"] else 0
        values = arguments(layer_key, TOKENS, "cpu", seed=rank, offset=first)
        for name in SCALES:
            if values[name].dtype == torch.float32:
                values[name] = 0.02 * (0.5 + values[name].abs())
        ranks.append(values)

    generator = torch.Generator().manual_seed(0)
    # every id is an expert's: SGLang takes -1 for the last one
    order = torch.rand(TOKENS, sizes["num_experts"], generator=generator).argsort(1)
    for values in ranks:
        values["topk_ids"] = order[:, : sizes["top_k"]].int()
        values["topk_weights"] = ranks[0]["topk_weights"]
    x = torch.randn(TOKENS, sizes["hidden_size"], generator=generator).bfloat16()
    return TwoRanks(layer_key, x, ranks)
