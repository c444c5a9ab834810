"""Read definitions/layers.toml: models, and the sizes of each of their layers that has a
definition.

    [deepseek-v3]
    num_experts = 256
    top_k = 8
    ...
    ranks = { full = 8, deepseek-v3-tp4 = { tp = 4 } }    # layer key -> how ranks share the layer

The file is read when it is first asked for. `moebench model --add` writes a model into it; then
`read_again` forgets it and all that was made of it (`cached`).
"""

import functools
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from moebench.core import paths

# Bytes of weights that a reference dequantises at once, in fp32: beside FIB's inputs there is no
# room for more on a GPU.
MOST_BYTES_AT_ONCE = 40 << 30
# Fields that a model's table may leave out
DEFAULTS = {
    "num_groups": 1,
    "kept_groups": 1,
    "activation": "silu",
    "swiglu_limit": 0,
    "routed_scaling_factor": 1.0,
    "shared_gate": False,
}
# Fields of Sizes that a model's table states
MODEL_FIELDS = (
    "routing",
    "num_experts",
    "top_k",
    "num_groups",
    "kept_groups",
    "hidden_size",
    "activation",
    "swiglu_limit",
    "shared_gate",
)

_caches = []


class Sizes(TypedDict):
    """The sizes of a layer on one rank, with its router and activation."""

    routing: str  # "sigmoid-bias", "renorm", or "given" of any other router
    num_experts: int  # of the whole layer, without shared ones
    top_k: int
    num_groups: int  # of experts; the router chooses among the best kept_groups of them
    kept_groups: int
    hidden_size: int
    activation: str  # as layers.toml and engines call it: fp8/swiglu.py
    swiglu_limit: float  # at which the activation is clamped; 0 for none
    shared_gate: bool  # whether a sigmoid weighs the shared experts
    routed_scaling_factor: float  # of the weights
    num_local_experts: int  # on this rank, shared ones included
    num_shared_experts: int  # the last of the local ones
    intermediate_size: int  # of the rank's slice of each expert
    tensor_ranks: int  # that have a slice of each expert
    experts_at_once: int  # whose weights the reference dequantises together
    model: tuple[str, ...]  # tags of the models that have the layer
    small: bool  # for machines without a GPU


Layers = dict[str, Sizes]  # layer key -> sizes


@dataclass(frozen=True)
class Split:
    """How ranks share a layer.

    experts: number of expert-parallel ranks, each with other experts. tensor: number of
    tensor-parallel ranks, each with a slice of every expert's intermediate size. shared: number of
    shared experts, which every rank has behind its others and every token takes on one of the
    ranks.
    """

    experts: int = 1
    tensor: int = 1
    shared: int = 0

    @classmethod
    def of_table(cls, value: int | dict[str, int]) -> "Split":
        """Return a split of layers.toml: 8, or { ep = 2, tp = 4 }, or { ep = 8, shared = 1 }."""
        if isinstance(value, int):
            return cls(value)
        return cls(value.get("ep", 1), value.get("tp", 1), value.get("shared", 0))

    def ranks(self) -> dict[str, int]:
        """Return {"ep": 2, "tp": 4}, without a number of 1."""
        numbers = {"ep": self.experts, "tp": self.tensor}
        return {name: number for name, number in numbers.items() if number > 1}

    def in_table(self) -> str:
        """Return the split as layers.toml has it."""
        if self.tensor == 1 and not self.shared:
            return str(self.experts)

        fields = [f"{name} = {number}" for name, number in self.ranks().items()]
        if self.shared:
            fields.append(f"shared = {self.shared}")
        return f"{{ {', '.join(fields)} }}"

    def suffix(self) -> str:
        """Return the end of a layer key: "-ep8", "-ep2-tp4", "-ep8-shared"; "" for one rank."""
        suffix = ""
        for name, number in self.ranks().items():
            suffix += f"-{name}{number}"
        return f"{suffix}-shared" if self.shared else suffix

    def words(self) -> str:
        """Return the split for a table: "EP8", "EP2 TP4", "EP8 + shared"; "EP1" for one rank."""
        words = [f"{name.upper()}{number}" for name, number in self.ranks().items()]
        text = " ".join(words) or "EP1"
        return f"{text} + shared" if self.shared else text


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
    """Return table's name -> the model, as layers.toml has it."""
    return tomllib.loads(layers_file().read_text(encoding="utf-8"))


@cached
def layer_sizes() -> Layers:
    """Return layer key -> sizes on one rank, of the layers of all models."""
    sizes = {}
    for name, model in models().items():
        for key, value in model["ranks"].items():
            sizes[key] = sizes_on_rank(name, model, Split.of_table(value))
    return sizes


@cached
def layers_of(routing: str, shared: bool = False) -> Layers:
    """Return layer key -> sizes of the layers with a routing, "sigmoid-bias" for instance.

    shared: those that have shared experts, or else those that have none.
    """
    layers = {}
    for key, sizes in layer_sizes().items():
        has_shared = sizes["num_shared_experts"] > 0
        if sizes["routing"] == routing and has_shared == shared:
            layers[key] = sizes
    return layers


def sizes_on_rank(name: str, model: dict, split: Split) -> Sizes:
    """Return the sizes of a model's layer on one rank. name, model: of the table in layers.toml."""
    stated = DEFAULTS | model
    local = model["num_experts"] // split.experts + split.shared
    width = model["intermediate_size"] // split.tensor
    weights = 3 * model["hidden_size"] * width
    all_fit = local * weights * 4 <= MOST_BYTES_AT_ONCE

    sizes = {key: stated[key] for key in MODEL_FIELDS}
    return sizes | {
        "num_local_experts": local,
        "num_shared_experts": split.shared,
        "intermediate_size": width,
        "tensor_ranks": split.tensor,
        "routed_scaling_factor": float(stated["routed_scaling_factor"]),
        "experts_at_once": local if all_fit else 1,
        "model": tuple(model.get("tags", [name])),
        "small": model.get("small", False),
    }


def routed_experts(sizes: Sizes) -> int:
    """Return how many of a rank's experts the router chooses among: all but the shared ones."""
    return sizes["num_local_experts"] - sizes["num_shared_experts"]


def expert_ranks(sizes: Sizes) -> int:
    """Return how many expert-parallel ranks there are."""
    return sizes["num_experts"] // routed_experts(sizes)


def has_all_experts(sizes: Sizes) -> bool:
    """Whether a rank of these sizes holds every expert."""
    return expert_ranks(sizes) == 1
