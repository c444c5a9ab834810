"""The table layers.toml: models, and the sizes of each layer that has a definition."""

import tomllib
from pathlib import Path

MODELS = tomllib.loads(Path(__file__).with_name("layers.toml").read_text(encoding="utf-8"))
# Weights of a layer that the reference dequantises at once, in fp32: beside FIB's inputs there is
# room for no more.
MOST_AT_ONCE = 40 << 30


def geometries(*routings):
    """Key -> sizes on one rank, of the models with one of these routings.

    experts_at_once: how many experts' weights the reference dequantises together, all of the rank's
    or one. model: the tags of the models that have the layer, the table's own name first.
    """
    found = {}
    for name, of in MODELS.items():
        for key, ranks in of["geometries"].items() if of["routing"] in routings else ():
            local = of["num_experts"] // ranks
            found[key] = {
                "routing": of["routing"],
                "num_experts": of["num_experts"],
                "num_local_experts": local,
                "top_k": of["top_k"],
                "kept_groups": of.get("kept_groups", 1),
                "num_groups": of.get("num_groups", 1),
                "hidden_size": of["hidden_size"],
                "intermediate_size": of["intermediate_size"],
                "activation": of.get("activation", "silu"),
                "swiglu_limit": of.get("swiglu_limit", 0),
                "experts_at_once": local
                if local * weights_of_expert(of) * 4 <= MOST_AT_ONCE
                else 1,
                "model": tuple(of.get("tags", (name,))),
            }
    return found


def weights_of_expert(of):
    return 3 * of["hidden_size"] * of["intermediate_size"]


def has_all_experts(of):
    """Whether a geometry's rank holds every expert."""
    return of["num_local_experts"] == of["num_experts"]


def small(routing):
    """Keys of the geometries with this routing that are for machines without a GPU."""
    tables = [
        of["geometries"] for of in MODELS.values() if of["routing"] == routing and of.get("small")
    ]
    return tuple(key for table in tables for key in table)
