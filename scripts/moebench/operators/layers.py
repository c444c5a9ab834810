"""definitions/layers.toml: models, and the sizes of each layer that has a definition.

The table is read when it is first asked for. `read_again` forgets it and what was made from it, as
`moebench model --add` needs, which writes a model into it.
"""

import functools
import tomllib
from collections.abc import Callable
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
def geometries(*routings: str) -> dict[str, Sizes]:
    """Return key -> sizes on one rank, of the models with one of these routings."""
    sizes = {}
    for name, model in models().items():
        if model["routing"] in routings:
            for key, ranks in model["geometries"].items():
                sizes[key] = sizes_on_rank(name, model, ranks)
    return sizes


def sizes_on_rank(name: str, model: dict, ranks: int) -> Sizes:
    """Return a model's layer on one of so many expert-parallel ranks.

    experts_at_once: how many experts' weights the reference dequantises together, all of the rank's
    or one. model: the tags of the models that have the layer, the table's own name first.
    """
    local = model["num_experts"] // ranks
    weights = 3 * model["hidden_size"] * model["intermediate_size"]
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
        "intermediate_size": model["intermediate_size"],
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
