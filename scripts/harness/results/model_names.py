"""Models by the names that people type, and which definition is the MoE layer of each at which expert parallelism."""

import re
from dataclasses import dataclass
from functools import cache

from harness.core.errors import UserError
from harness.core.names import unknown
from harness.operators import catalogue, moe_fp8_block_scale, moe_fp8_block_scale_renorm
from harness.operators.moe_fp8_block_scale_routed import ROUTER_INSIDE
from harness.packing.manifest import solutions_of

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
WHOLE = {"qwen3-next": 512}  # definition -> the model's experts, where it has and routes among some of them only
SAME_LAYER = {"deepseek-v3.1": "deepseek-v3"}  # models that no tag names
MODEL = re.compile(r"(.*?)(?:-?ep=?(\d+))?")  # its name and the number of ranks
NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Layer:
    """A model's MoE layer on one of `ranks` expert-parallel ranks. geometry: its key in the catalogue."""

    model: str
    tags: tuple[str, ...]
    ranks: int
    geometry: str

    @property
    def name(self) -> str:
        return (
            f"{self.model} {self.sizes['num_experts']}/{self.experts}"
            if self.is_part
            else f"{self.model} EP{self.ranks}"
        )

    @property
    def experts(self) -> int:
        """All that the model's layer has."""
        return WHOLE.get(self.geometry, self.sizes["num_experts"])

    @property
    def is_part(self) -> bool:
        """Whether the router knows a part of the experts only, so that no answer is the model's."""
        return self.geometry in WHOLE

    @property
    def count(self) -> int:
        """How many such layers the model has, without those that only predict further tokens."""
        return MODELS[self.tags[0]][1]

    @property
    def sizes(self) -> dict:
        return catalogue.GEOMETRIES[self.geometry]

    @property
    def definition(self) -> str:
        return catalogue.definition_name(self.geometry)


@cache
def layers() -> list[Layer]:
    """Every model's layer that has a definition, by model and from many ranks to one.

    Raises UserError for a definition of a model that is not in MODELS.
    """
    found = []
    for family in FAMILIES:
        for geometry, of in family.GEOMETRIES.items():
            if geometry not in family.SMALL:
                if (tag := of["model"][0]) not in MODELS:
                    raise UserError(f"MODELS of {__name__}: no entry {tag!r}, the first model of definition {geometry}")
                ranks = of["num_experts"] // of["num_local_experts"]
                found.append(Layer(MODELS[tag][0], of["model"], ranks, geometry))
    order = list(MODELS)
    return sorted(found, key=lambda layer: (order.index(layer.tags[0]), -layer.ranks))


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
    if (routed := catalogue.KEYS.get(text)) in ROUTER_INSIDE:
        served = ", ".join(solutions_of([routed])) or "none yet"
        raise UserError(f"model {text!r}: a definition behind a router; solutions that serve it: {served}")
    name, ranks = MODEL.fullmatch(given).groups()
    tags = set(tags_named(name))
    found = [layer for layer in layers() if tags & set(layer.tags)]
    if len({layer.model for layer in found}) > 1:
        raise UserError(f"model {text!r} is several: {', '.join(sorted(tags))}")
    if not found:
        known = [*dict.fromkeys(tag for layer in layers() for tag in layer.tags), *SAME_LAYER]
        alike = [tag for tag in known if NUMBER.findall(tag) == NUMBER.findall(name)]  # V2 is no misspelt V3
        raise UserError(unknown("model", text, alike, ", ".join(known)))
    if ranks is None:
        return found
    if not (chosen := [layer for layer in found if layer.ranks == int(ranks)]):
        raise UserError(f"model {text!r}: no definition at EP{ranks}; there are: {', '.join(x.name for x in found)}")
    return chosen


def weight_bytes(layer: Layer) -> int:
    """Of the rank's experts in one layer, with their scales."""
    return layer.sizes["num_local_experts"] * moe_fp8_block_scale.expert_bytes(layer.sizes)
