"""Models: how many MoE layers each has, and which definition is that layer at which expert parallelism."""

from dataclasses import dataclass
from functools import cache

from harness.operators import catalogue, moe_fp8_block_scale, moe_fp8_block_scale_renorm
from harness.operators.moe_fp8_block_scale_routed import ROUTER_INSIDE

FAMILIES = (moe_fp8_block_scale, moe_fp8_block_scale_renorm)
MODELS = {  # a definition's first model tag -> its name in tables; its layers with experts, by its published config
    "deepseek-v3": ("DeepSeek-V3", 58),  # 61 layers, of which the first 3 are dense
    "kimi-k2": ("Kimi-K2", 60),  # 61, the first dense
    "minimax-m2": ("MiniMax-M2", 62),
    "glm-5": ("GLM-5", 75),  # 78, the first 3 dense
    "qwen3-235b-a22b": ("Qwen3-235B", 94),
    "qwen3-30b-a3b": ("Qwen3-30B", 48),
    "qwen3-next-80b-a3b": ("Qwen3-Next", 48),
}
WHOLE = {"qwen3-next": 512}  # geometry -> the model's experts, where the definition routes among some of them only


@dataclass(frozen=True)
class Layer:
    """A model's MoE layer on one of `ranks` expert-parallel ranks.

    geometry: its key in the catalogue. count: such layers in the model, without those that only predict further tokens.
    """

    model: str
    count: int
    ranks: int
    geometry: str

    @property
    def name(self) -> str:
        """'DeepSeek-V3 EP8'; 'Qwen3-Next 128/512' where the router knows a part of the experts only."""
        whole = WHOLE.get(self.geometry)
        return f"{self.model} {self.sizes['num_experts']}/{whole}" if whole else f"{self.model} EP{self.ranks}"

    @property
    def sizes(self) -> dict:
        return catalogue.GEOMETRIES[self.geometry]

    @property
    def definition(self) -> str:
        return catalogue.definition_name(self.geometry)


@cache
def layers() -> list[Layer]:
    """Every model's layer that has a definition with the router inside, by model and from many ranks to one."""
    keys = [key for family in FAMILIES for key in family.GEOMETRIES if key not in family.SMALL]
    sizes, order = catalogue.GEOMETRIES, list(MODELS)
    ranks = {key: sizes[key]["num_experts"] // sizes[key]["num_local_experts"] for key in keys}
    keys.sort(key=lambda key: (order.index(sizes[key]["model"][0]), -ranks[key]))
    return [Layer(*MODELS[sizes[key]["model"][0]], ranks[key], key) for key in keys]


def layer_of(geometry: str) -> Layer | None:
    """The model's layer, with its router inside or before it; None where it is of no whole model."""
    inside = ROUTER_INSIDE.get(geometry, geometry)
    return next((layer for layer in layers() if layer.geometry == inside), None)


def weight_bytes(layer: Layer) -> int:
    """Of the rank's experts in one layer, with their scales."""
    return layer.sizes["num_local_experts"] * moe_fp8_block_scale.expert_bytes(layer.sizes)
