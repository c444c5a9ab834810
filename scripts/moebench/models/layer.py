"""The models of definitions/layers.toml, layer by layer: which definition is DeepSeek-V3's layer on
one of 8 expert-parallel ranks, and which on one of 4 tensor-parallel ones?

The tables of models in reports/ have a row for each ModelLayer.
"""

from dataclasses import dataclass

from moebench.operators import catalogue
from moebench.operators.fp8.routed import routed_key, router_inside
from moebench.operators.layers import Sizes, Split, cached, models


@dataclass(frozen=True)
class ModelLayer:
    """A model's MoE layer on one of its ranks.

    model: the table in definitions/layers.toml. split: how ranks share the layer. key: in the
    catalogue.
    """

    model: dict
    split: Split
    key: str

    @property
    def name(self) -> str:
        """The model and how it is split: 'DeepSeek-V3 EP8', 'DeepSeek-V3 EP8 + shared'; 'Qwen3-Next
        128/512' where the router of this layer chooses among 128 of the model's 512 experts.
        """
        shown = self.model["name"]
        all_experts = self.model.get("of_experts")
        if all_experts:
            shared = " + shared" if self.split.shared else ""
            return f"{shown} {self.model['num_experts']}/{all_experts}{shared}"
        return f"{shown} {self.split.words()}"

    @property
    def count(self) -> int:
        """How many such layers the model has, but for those that only predict further tokens."""
        return self.model["layers"]

    @property
    def sizes(self) -> Sizes:
        return catalogue.layer_sizes()[self.key]

    @property
    def definition(self) -> str:
        return catalogue.definition_name(self.key)


@cached
def layers() -> list[ModelLayer]:
    """Return every model's layers, in the order of `many_ranks_first`; where a layer has a form
    with the router inside and one with top-k given, the first of these.
    """
    every_layer = []
    for model in models().values():
        if model.get("small"):
            continue
        splits = {key: Split.of_table(value) for key, value in model["ranks"].items()}
        for key, split in sorted(splits.items(), key=many_ranks_first):
            layer_key = key
            if key not in catalogue.layer_sizes():
                # no definition has its router inside
                layer_key = routed_key(key)
            every_layer.append(ModelLayer(model, split, layer_key))
    return every_layer


def many_ranks_first(item: tuple[str, Split]) -> tuple:
    """Return what sorts (key, split) of a model: those without shared experts before those with
    them, whole experts before slices, many ranks before few.
    """
    key, split = item
    return split.shared, split.tensor > 1, -split.experts, -split.tensor, key


def layer_of(layer_key: str) -> ModelLayer | None:
    """Return the model's layer that has a key, whether its router is inside or top-k is given;
    None for a key of no model.
    """
    inside = router_inside().get(layer_key, layer_key)
    for layer in layers():
        if layer.key == inside:
            return layer
    return None


def weight_bytes(layer: ModelLayer) -> int:
    """Return the bytes of the rank's experts in one layer, with their scales."""
    return layer.sizes["num_local_experts"] * catalogue.ROUTED.expert_bytes(layer.sizes)
