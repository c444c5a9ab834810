"""definitions/layers.toml: models, and the sizes of each layer that has a definition.

The table is read when it is first asked for. `read_again` forgets it and what was made from it, as
`moebench model --add` needs, which writes a model into it.
"""

import functools
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from moebench.core import paths

Sizes = dict[str, object]  # a layer on one rank: its sizes, router, activation and models

# Weights of a layer that the reference dequantises at once, in fp32: beside FIB's inputs there is
# room for no more.
MOST_BYTES_AT_ONCE = 40 << 30
# What a model has whose table in layers.toml does not say so.
DEFAULTS = {
    "num_groups": 1,
    "kept_groups": 1,
    "activation": "silu",
    "swiglu_limit": 0,
    "routed_scaling_factor": 1.0,
}

_caches = []


@dataclass(frozen=True)
class Split:
    """How ranks share a layer: experts ranks hold other experts each, tensor ranks a slice of every
    expert's intermediate size.
    """

    experts: int = 1
    tensor: int = 1

    @classmethod
    def of_table(cls, value: int | dict[str, int]) -> "Split":
        """Return what layers.toml says: 8, or { ep = 2, tp = 4 }."""
        if isinstance(value, int):
            return cls(value)
        return cls(value.get("ep", 1), value.get("tp", 1))

    def in_table(self) -> str:
        """Return what layers.toml says of it."""
        if self.tensor == 1:
            return str(self.experts)
        if self.experts == 1:
            return f"{{ tp = {self.tensor} }}"
        return f"{{ ep = {self.experts}, tp = {self.tensor} }}"

    def suffix(self) -> str:
        """Return the end of a key: "-ep8", "-tp4", "-ep2-tp4", "" for one rank."""
        experts = f"-ep{self.experts}" if self.experts > 1 else ""
        return experts + (f"-tp{self.tensor}" if self.tensor > 1 else "")

    def words(self) -> str:
        """Return "EP8", "TP4", "EP2 TP4", or "EP1" for one rank."""
        return self.suffix().upper().replace("-", " ").strip() or "EP1"


def cached(function: Callable) -> Callable:
    """Decorate a function to keep its answers until the table is read again."""
    keeping = functools.cache(function)
    _caches.append(keeping)
    return keeping


def read_again() -> None:
    """Forget layers.toml and everything that was made from it."""
    for keeping in _caches:
        keeping.cache_clear()


def definitions_folder() -> Path:
    """Return the folder of layers.toml, config_json.toml, public_workloads.csv and FIB's JSON."""
    return paths.SHIPPED / "definitions"


def layers_file() -> Path:
    return definitions_folder() / "layers.toml"


@cached
def models() -> dict[str, dict]:
    """Return layers.toml: table's name -> the model as it is written there."""
    return tomllib.loads(layers_file().read_text(encoding="utf-8"))


@cached
def layer_sizes(*routings: str) -> dict[str, Sizes]:
    """Return key -> sizes on one rank, of the models with one of these routings."""
    sizes = {}
    for name, model in models().items():
        if model["routing"] in routings:
            for key, value in model["geometries"].items():
                sizes[key] = sizes_on_rank(name, model, Split.of_table(value))
    return sizes


def sizes_on_rank(name: str, model: dict, split: Split) -> Sizes:
    """Return a model's layer on one of its ranks.

    tensor_ranks: how many have a slice each of intermediate_size. experts_at_once: how many
    experts' weights the reference dequantises together, all of the rank's or one. model: the tags
    of the models that have the layer, the table's own name first.
    """
    local = model["num_experts"] // split.experts
    width = model["intermediate_size"] // split.tensor
    weights = 3 * model["hidden_size"] * width
    all_fit = local * weights * 4 <= MOST_BYTES_AT_ONCE

    with_defaults = DEFAULTS | model
    return {
        "routing": model["routing"],
        "num_experts": model["num_experts"],
        "num_local_experts": local,
        "top_k": model["top_k"],
        "kept_groups": with_defaults["kept_groups"],
        "num_groups": with_defaults["num_groups"],
        "hidden_size": model["hidden_size"],
        "intermediate_size": width,
        "tensor_ranks": split.tensor,
        "activation": with_defaults["activation"],
        "swiglu_limit": with_defaults["swiglu_limit"],
        "routed_scaling_factor": float(with_defaults["routed_scaling_factor"]),
        "experts_at_once": local if all_fit else 1,
        "model": tuple(model.get("tags", (name,))),
    }


def has_all_experts(sizes: Sizes) -> bool:
    """Whether a rank of these sizes holds every expert."""
    return sizes["num_local_experts"] == sizes["num_experts"]


@cached
def small(routing: str) -> tuple[str, ...]:
    """Return the keys of the layers with this routing that are for machines without a GPU."""
    keys = []
    for model in models().values():
        if model["routing"] == routing and model.get("small"):
            keys += model["geometries"]
    return tuple(keys)
