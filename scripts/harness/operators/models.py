"""The models of definitions/layers.toml: which definition is their layer at which expert parallelism."""

from dataclasses import dataclass
from functools import cache

from definitions.layers import MODELS
from harness.operators import catalogue, moe_fp8_block_scale
from harness.operators.moe_fp8_block_scale_routed import ROUTER_INSIDE, routed_key


@dataclass(frozen=True)
class Layer:
    """A model's MoE layer on one of `ranks` expert-parallel ranks.

    model: its table in definitions/layers.toml. geometry: its key in the catalogue.
    """

    model: dict
    ranks: int
    geometry: str

    @property
    def name(self) -> str:
        """'DeepSeek-V3 EP8'; 'Qwen3-Next 128/512' where the router knows a part of the experts only."""
        shown, whole = self.model["name"], self.model.get("of_experts")
        return f"{shown} {self.sizes['num_experts']}/{whole}" if whole else f"{shown} EP{self.ranks}"

    @property
    def count(self) -> int:
        """Such layers in the model, without those that only predict further tokens."""
        return self.model["layers"]

    @property
    def sizes(self) -> dict:
        return catalogue.GEOMETRIES[self.geometry]

    @property
    def definition(self) -> str:
        return catalogue.definition_name(self.geometry)


@cache
def layers() -> list[Layer]:
    """Every model's layer, by model and from many ranks to one; with the router inside where there is that form."""
    found = []
    for model in (of for of in MODELS.values() if not of.get("small")):
        ranks = sorted(((number, key) for key, number in model["geometries"].items()), reverse=True)
        keys = [(number, key if key in catalogue.GEOMETRIES else routed_key(key)) for number, key in ranks]
        found += [Layer(model, number, key) for number, key in keys]
    return found


def layer_of(geometry: str) -> Layer | None:
    """The model's layer, with its router inside or before it; None where it is of no whole model."""
    inside = ROUTER_INSIDE.get(geometry, geometry)
    return next((layer for layer in layers() if layer.geometry == inside), None)


def weight_bytes(layer: Layer) -> int:
    """Of the rank's experts in one layer, with their scales."""
    return layer.sizes["num_local_experts"] * moe_fp8_block_scale.expert_bytes(layer.sizes)
