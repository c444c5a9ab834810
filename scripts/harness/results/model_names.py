"""Models by the names that people type, and which definition is the MoE layer of each at which expert parallelism."""

import re
from dataclasses import dataclass
from functools import cache

from harness.core.errors import UserError
from harness.core.names import unknown
from harness.operators import catalogue, moe_fp8_block_scale, moe_fp8_block_scale_renorm
from harness.operators.moe_fp8_block_scale_routed import ROUTER_INSIDE

FAMILIES = (moe_fp8_block_scale, moe_fp8_block_scale_renorm)
SHORT = {  # a definition's first model tag -> the model's name in tables
    "deepseek-v3": "DeepSeek-V3",
    "kimi-k2": "Kimi-K2",
    "minimax-m2": "MiniMax-M2",
    "glm-5": "GLM-5",
    "qwen3-235b-a22b": "Qwen3-235B",
    "qwen3-30b-a3b": "Qwen3-30B",
    "qwen3-next-80b-a3b": "Qwen3-Next",
}
MOE_LAYERS = {  # a definition's first model tag -> the model's layers with experts, by its published config
    "deepseek-v3": 58,  # 61, of which the first 3 are dense
    "kimi-k2": 60,  # 61, the first dense
    "minimax-m2": 62,
    "glm-5": 75,  # 78, the first 3 dense
    "qwen3-235b-a22b": 94,
    "qwen3-30b-a3b": 48,
    "qwen3-next-80b-a3b": 48,
}
SAME_LAYER = {"deepseek-v3.1": "deepseek-v3"}  # models that no tag names
MODEL = re.compile(r"(.*?)(?:-?ep=?(\d+))?")  # its name and the number of ranks


@dataclass(frozen=True)
class Layer:
    """A model's MoE layer on one of `ranks` expert-parallel ranks. geometry: its key in the catalogue."""

    model: str
    tags: tuple[str, ...]
    ranks: int
    geometry: str

    @property
    def name(self) -> str:
        return f"{self.model} EP{self.ranks}"

    @property
    def count(self) -> int:
        """How many such layers the model has, without those that only predict further tokens."""
        return MOE_LAYERS[self.tags[0]]

    @property
    def sizes(self) -> dict:
        return catalogue.GEOMETRIES[self.geometry]

    @property
    def definition(self) -> str:
        return catalogue.definition_name(self.geometry)


@cache
def layers() -> list[Layer]:
    """Every model's layer that has a definition, by model and from many ranks to one."""
    found = []
    for family in FAMILIES:
        for geometry, of in family.GEOMETRIES.items():
            if geometry not in family.SMALL:
                ranks = of["num_experts"] // of["num_local_experts"]
                found.append(Layer(SHORT[of["model"][0]], of["model"], ranks, geometry))
    order = list(SHORT.values())
    return sorted(found, key=lambda layer: (order.index(layer.model), -layer.ranks))


def layer_of(geometry: str) -> Layer | None:
    """The model's layer, with its router inside or before it; None where it is of no whole model."""
    inside = ROUTER_INSIDE.get(geometry, geometry)
    return next((layer for layer in layers() if layer.geometry == inside), None)


def tags_named(name: str) -> list[str]:
    """Model tags that a lower-case name means: its own, one that it adds a release to, or those that it begins."""
    known = {tag for layer in layers() for tag in layer.tags}
    alias = next((tag for same, tag in SAME_LAYER.items() if name == same or name.startswith(f"{same}-")), None)
    longer = sorted((tag for tag in known if name == tag or name.startswith(f"{tag}-")), key=len)
    return [alias] if alias else longer[-1:] or [tag for tag in known if tag.startswith(f"{name}-")]


def layers_named(text: str) -> list[Layer]:
    """The layers of a model, such as Qwen3-235B-A22B, deepseek-ai/DeepSeek-V3-0324, Kimi-K2-ep8 or a geometry's key.

    Raises UserError for a model that no definition is of, a name that several models have, or an EP without a layer.
    """
    given = text.strip().rpartition("/")[2].lower().replace("_", "-").replace(" ", "-")
    if exact := [layer for layer in layers() if text in (layer.geometry, layer.definition)]:
        return exact
    name, ranks = MODEL.fullmatch(given).groups()
    tags = set(tags_named(name))
    found = [layer for layer in layers() if tags & set(layer.tags)]
    if len({layer.model for layer in found}) > 1:
        raise UserError(f"model {text!r} is several: {', '.join(sorted(tags))}")
    if not found:
        known = [*dict.fromkeys(tag for layer in layers() for tag in layer.tags), *SAME_LAYER]
        raise UserError(unknown("model", text, known))
    if ranks is None:
        return found
    if not (chosen := [layer for layer in found if layer.ranks == int(ranks)]):
        raise UserError(f"model {text!r}: no definition at EP{ranks}; there are: {', '.join(x.name for x in found)}")
    return chosen


def weight_bytes(layer: Layer) -> int:
    """Of the rank's experts, with their scales."""
    return layer.sizes["num_local_experts"] * moe_fp8_block_scale.expert_bytes(layer.sizes)
